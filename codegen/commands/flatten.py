"""``flatten SPEC``: the specialised scheduler as one source."""

from __future__ import annotations

import argparse
import sys

from deepinfer_gen.codegen.sources import open_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``flatten``."""
    parser.add_argument("spec", metavar="SPEC", help="spec file, name of a shipped spec, or generated folder")


def run(args: argparse.Namespace) -> int:
    """Print the source."""
    from deepinfer_gen.codegen.flatten import flatten

    sys.stdout.write(flatten(open_plan(args.spec)))
    return 0
