"""``fit SPEC [--set KEY=VALUE]…``: what fits in memory."""

from __future__ import annotations

import argparse

from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.fit import fit_json, fit_lines, fit_report
from deepinfer_gen.diagnostics import Diagnostic, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``fit``."""
    parser.add_argument("spec", metavar="SPEC", help="spec file, or name of a shipped spec")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="try another value; can be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the report as data")


def run(args: argparse.Namespace) -> int:
    """Print the report; a plan that does not fit is bad input, told after the report."""
    report = fit_report(args.spec, _overrides(args.overrides))
    if args.json:
        write_json(fit_json(report))
    else:
        write_lines(fit_lines(report))
    if report.fault:
        raise report.fault
    return 0


def _overrides(written: list[str]) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for text in written:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            remedy = "write --set limits.max_num_seqs=256"
            raise InputError(Diagnostic("DI262", f"'--set {text}' is not KEY=VALUE", help=remedy))
        if key in overrides:
            remedy = "give each key once"
            raise InputError(Diagnostic("DI262", f"--set gives {key} twice: {overrides[key]} and {value}", help=remedy))
        overrides[key] = value
    return overrides
