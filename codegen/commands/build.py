"""``build FOLDER``: the engine of a generated folder, without its spec."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deepinfer_gen.codegen.commands.output import write_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``build``."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="generated folder, such as generated/tiny-cpu")


def run(args: argparse.Namespace) -> int:
    """Build, or find the engine in the cache; the path of the library is the result."""
    build(args.folder)
    return 0


def build(folder: Path) -> None:
    """Build ``folder`` and say what was done; shared with the default command."""
    from deepinfer_gen.codegen.build import build_folder

    built = build_folder(folder)
    sys.stderr.write("compiled the engine\n" if built.compiled else "the engine is in the cache already\n")
    write_lines([str(built.engine.library)])
