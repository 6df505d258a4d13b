"""``check SPEC…``: whether generated folders are what their specs give now."""

from __future__ import annotations

import argparse
import sys

from deepinfer_gen.codegen.commands.arguments import add_parent
from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.diagnostics import EXIT_DRIFT, EXIT_OK, Diagnostic, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``check``."""
    parser.add_argument("specs", metavar="SPEC", nargs="+", help="spec files, or names of shipped specs")
    add_parent(parser)
    parser.add_argument("--json", action="store_true", help="print the differences as data")


def run(args: argparse.Namespace) -> int:
    """Compare; every faulty spec is reported before anything is compared."""
    plans = []
    faults: list[Diagnostic] = []
    for spec in args.specs:
        try:
            plans.append(plan_spec(spec))
        except InputError as fault:
            faults += fault.diagnostics
    if faults:
        raise InputError(faults)
    from deepinfer_gen.codegen.check import check

    drifts = check(plans, args.output)
    if args.json:
        listed = [{"file": d.file, "reason": d.reason, "diff": d.diff} for d in drifts]
        write_json({"checked": [p.name for p in plans], "drift": listed})
    else:
        write_lines(d.as_text() for d in drifts)
        folders = f"{len(plans)} folder{'s' if len(plans) > 1 else ''}"
        differences = f"{len(drifts) or 'no'} difference{'s' if len(drifts) != 1 else ''}"
        sys.stderr.write(f"checked {folders}: {differences}\n")
    return EXIT_DRIFT if drifts else EXIT_OK
