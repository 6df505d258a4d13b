"""``diff A B``: what differs between two engines."""

from __future__ import annotations

import argparse

from deepinfer_gen.codegen.commands.arguments import add_engine
from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.diff import diff_engines, diff_json, diff_lines
from deepinfer_gen.codegen.sources import open_view
from deepinfer_gen.diagnostics import EXIT_DRIFT, EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``diff``."""
    for name in ("a", "b"):
        add_engine(parser, name, name.upper())
    parser.add_argument("--json", action="store_true", help="print the differences as data")


def run(args: argparse.Namespace) -> int:
    """Print the differences; the status says whether there are any."""
    diff = diff_engines(open_view(args.a), open_view(args.b))
    if args.json:
        write_json(diff_json(diff))
    else:
        write_lines(diff_lines(diff))
    return EXIT_DRIFT if diff.different else EXIT_OK
