"""``draw SPEC``: the state slot and a KV block as pictures."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from deepinfer_gen.codegen.commands.arguments import add_engine
from deepinfer_gen.codegen.commands.output import write_lines
from deepinfer_gen.codegen.drawing.picture import picture_of
from deepinfer_gen.codegen.sources import open_layout
from deepinfer_gen.diagnostics import Diagnostic, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``draw``."""
    add_engine(parser)
    parser.add_argument("-o", "--output", metavar="FILE.svg", type=Path, help="write an SVG there instead of text here")


def run(args: argparse.Namespace) -> int:
    """Draw in the terminal, or write the SVG."""
    plan, layout = open_layout(args.spec)
    picture = picture_of(plan.name, layout, backbone_layers=plan.integer("model.config.num_hidden_layers"))
    if args.output:
        if args.output.suffix != ".svg":
            message = f"the picture is an SVG, and '{args.output}' does not end in .svg"
            raise InputError(Diagnostic("DI266", message, help=f"write -o {args.output.with_suffix('.svg')}"))
        from deepinfer_gen.codegen.drawing.svg import layout_svg

        args.output.write_text(layout_svg(picture), encoding="utf-8", newline="\n")
        sys.stderr.write(f"wrote {args.output}\n")
        return 0
    from deepinfer_gen.codegen.drawing.terminal import layout_lines

    width = shutil.get_terminal_size((100, 24)).columns
    write_lines(layout_lines(picture, width=width, unicode=_has_boxes()))
    return 0


def _has_boxes() -> bool:
    """Whether stdout's encoding has the box-drawing characters."""
    try:
        "─│┌×–·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
