"""``simulate ENGINE… --workload FILE``: the compiled scheduler of a whole group against a modelled device."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from deepinfer_gen.codegen.commands.output import write_lines
from deepinfer_gen.diagnostics import EXIT_OK, EXIT_REQUEST_FAILED, Diagnostic, render_diagnostics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``simulate``."""
    parser.add_argument(
        "engines",
        metavar="ENGINE",
        nargs="+",
        help="generated folder, or its name below ./generated; one for all ranks, or one per rank",
    )
    parser.add_argument("--workload", metavar="FILE.jsonl", type=Path, required=True, help="one request a line")
    parser.add_argument("--ranks", metavar="N", type=_count, help="ranks of the group (default: the plan's)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="decides tokens and accepted drafts")
    parser.add_argument("--steps", metavar="K", type=_count, help="steps to run at most (default: until all is done)")
    parser.add_argument("--trace", metavar="OUT.jsonl", type=Path, help="write one JSON line per step and rank")
    parser.add_argument("--curve", metavar="FILE", type=Path, help="cost curve (default: affine, from the hardware)")
    parser.add_argument("--fault-plan", metavar="FILE", type=Path, help="what happens besides, one event a line")


def run(args: argparse.Namespace) -> int:
    """Simulate and print the figures; 4 if a step broke a rule. Raises ``InputError`` for bad input."""
    from deepinfer_gen.runtime.simulate.engines import load_group, refuse_impossible
    from deepinfer_gen.runtime.simulate.fault_plan import read_fault_plan
    from deepinfer_gen.runtime.simulate.run import simulate
    from deepinfer_gen.runtime.simulate.violation import ViolationError
    from deepinfer_gen.runtime.simulate.workload import read_workload

    engines = load_group(args.engines, args.ranks)
    workload, lines = read_workload(args.workload, len(engines))
    plan = read_fault_plan(args.fault_plan, workload, len(engines)) if args.fault_plan else []
    refuse_impossible(workload, lines, engines[0])
    with args.trace.open("w", encoding="utf-8") if args.trace else nullcontext() as trace:
        try:
            outcome = simulate(
                engines, workload, plan, seed=args.seed, steps=args.steps, curve=args.curve, trace=trace
            )  # fmt: skip
        except ViolationError as fault:
            remedy = f"the same inputs with --seed {args.seed} --steps {fault.step + 1} show it again; this is a bug"
            diagnostic = Diagnostic(fault.prop, fault.sentence(args.seed), help=remedy)
            sys.stderr.write(render_diagnostics([diagnostic], args.error_format) + "\n")
            return EXIT_REQUEST_FAILED
    write_lines(outcome.summary)
    return EXIT_OK


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1")
    return int(text)
