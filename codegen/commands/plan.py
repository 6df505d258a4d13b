"""``plan SPEC``: what a spec comes to, before anything is written or built."""

from __future__ import annotations

import argparse

from deepinfer_gen.codegen.commands.arguments import add_engine
from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.sources import open_plan, open_plan_unfit
from deepinfer_gen.diagnostics import Diagnostic, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``plan``."""
    add_engine(parser)
    parser.add_argument("--json", action="store_true", help="print the content of plan.json")
    parser.add_argument(
        "--dump",
        choices=("spec", "resolved", "plan"),
        help="print one stage as JSON: as written, with defaults, derived",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report, plan.json, or one stage. A plan that does not fit is bad input, told after the report."""
    if args.json and args.dump not in (None, "plan"):
        text = f"--json prints the plan, --dump {args.dump} another stage"
        raise InputError(Diagnostic("DI250", text, help="give one of them; --dump prints JSON already"))
    if args.dump in ("spec", "resolved"):
        write_json(_stage(args.spec, args.dump))
        return 0
    if args.json or args.dump == "plan":
        write_json(open_plan(args.spec).as_dict())
        return 0
    from deepinfer_gen.codegen.plan_report import plan_lines

    plan, fault = open_plan_unfit(args.spec)
    write_lines(plan_lines(plan, args.spec))
    if fault:
        raise fault
    return 0


def _stage(spec: str, stage: str) -> object:
    from deepinfer_gen.specs.dump import resolved_as_dict, spec_as_dict
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    loaded = load_spec(spec)
    return spec_as_dict(loaded) if stage == "spec" else resolved_as_dict(resolve(loaded))
