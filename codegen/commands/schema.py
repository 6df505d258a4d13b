"""``schema``: the JSON schema of specs, for editors."""

from __future__ import annotations

import argparse

from deepinfer_gen.codegen.commands.output import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``schema`` has no arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from deepinfer_gen.specs.json_schema import json_schema

    write_json(json_schema())
    return 0
