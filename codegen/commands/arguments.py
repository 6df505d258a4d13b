"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_engine(parser: argparse.ArgumentParser, name: str = "spec", metavar: str = "SPEC") -> None:
    """What a command looks at: ``codegen.sources`` opens it."""
    parser.add_argument(name, metavar=metavar, help="spec file, name of a shipped spec, or generated folder")


def add_parent(parser: argparse.ArgumentParser) -> None:
    """``-o PARENT``: where generated folders lie."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="PARENT",
        type=Path,
        default=Path("generated"),
        help="parent folder (default: generated)",
    )
