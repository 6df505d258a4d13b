"""``simulate ENGINE… --workload FILE``: the compiled scheduler of a whole group against a modelled device."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from deepinfer_gen.codegen.commands.output import write_lines
from deepinfer_gen.diagnostics import EXIT_OK, EXIT_REQUEST_FAILED, Diagnostic, InputError, render_diagnostics

_MOST_DIGITS = 9
_MOST_RANKS = 4096
"""As many as a spec may have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``simulate``."""
    parser.add_argument(
        "engines",
        metavar="ENGINE",
        nargs="+",
        help="generated folder, or its name below ./generated; one for all ranks, or one per rank",
    )
    parser.add_argument("--workload", metavar="FILE.jsonl", type=Path, required=True, help="one request a line")
    parser.add_argument("--ranks", metavar="N", type=_ranks, help="ranks of the group (default: the plan's)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="decides tokens and accepted drafts")
    parser.add_argument("--steps", metavar="K", type=_count, help="steps to run at most (default: until all is done)")
    parser.add_argument("--trace", metavar="OUT.jsonl", type=Path, help="write one JSON line per step and rank")
    parser.add_argument("--curve", metavar="FILE", type=Path, help="cost curve (default: affine, from the hardware)")
    parser.add_argument("--fault-plan", metavar="FILE", type=Path, help="what happens besides, one event a line")


def run(args: argparse.Namespace) -> int:
    """Simulate and print the figures; 4 if a step broke a rule. Raises ``InputError`` for bad input."""
    from deepinfer_gen.runtime.simulate.engines import load_group, refuse_impossible
    from deepinfer_gen.runtime.simulate.fault_plan import read_fault_plan
    from deepinfer_gen.runtime.simulate.run import cost_of, simulate
    from deepinfer_gen.runtime.simulate.violation import ViolationError
    from deepinfer_gen.runtime.simulate.workload import read_workload

    engines = load_group(args.engines, args.ranks)
    workload, lines = read_workload(args.workload, len(engines))
    plan = read_fault_plan(args.fault_plan, workload, len(engines)) if args.fault_plan else []
    refuse_impossible(workload, lines, engines[0])
    cost = cost_of(engines[0], args.curve)
    _refuse_overwriting(args)
    with args.trace.open("w", encoding="utf-8") if args.trace else nullcontext() as trace:
        try:
            outcome = simulate(engines, workload, plan, seed=args.seed, steps=args.steps, cost=cost, trace=trace)
        except ViolationError as fault:
            remedy = f"the same inputs with --seed {args.seed} --steps {fault.step + 1} show it again; this is a bug"
            diagnostic = Diagnostic(fault.prop, fault.sentence(args.seed), help=remedy)
            sys.stderr.write(render_diagnostics([diagnostic], args.error_format) + "\n")
            return EXIT_REQUEST_FAILED
    write_lines(outcome.summary)
    return EXIT_OK


def _refuse_overwriting(args: argparse.Namespace) -> None:
    """Raise ``InputError`` (DI393) where the trace would replace a file that is read."""
    for path in (args.workload, args.fault_plan, args.curve):
        if args.trace and path and args.trace.exists() and args.trace.samefile(path):
            message = f"--trace would overwrite the input '{path}'"
            raise InputError(Diagnostic("DI393", message, str(args.trace), help="name another file for the trace"))


def _count(text: str, most: int = 10**_MOST_DIGITS - 1) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 to {most}")
    return int(text)


def _ranks(text: str) -> int:
    return _count(text, _MOST_RANKS)
