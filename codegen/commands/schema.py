"""``schema``: the JSON schema of specs, for editors."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``schema`` has no arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from deepinfer_gen.specs.json_schema import schema_text

    sys.stdout.write(schema_text())
    return 0
