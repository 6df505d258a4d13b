"""What specialising is worth: ``python bench/specialisation.py [--steps N]``.

The decode engine of ``bench/scheduler.py`` is compiled twice: as generated, and with every integer of its EngineConfig
read from memory when the scheduler runs. Both run the same steps in turn; sizes of arrays stay as they are.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scheduler import ROOT, SIZES, compile_native, step_instructions
from scheduler_engines import generate

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from run_time_config import run_time_config, run_time_headers

RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/specialisation.py --steps 500"
    )
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    print("| sequences | constants: µs a step | run-time: µs | × | constants: instructions | run-time | × |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for sequences in SIZES:
        with tempfile.TemporaryDirectory() as work:
            folder = generate(sequences, Path(work))
            constant = compile_native(folder, ROOT / "templates", folder.parent / "constant")
            variable = compile_native(*run_time_copy(folder), folder.parent / "variable")
            pairs = [(step_time(constant, steps), step_time(variable, steps)) for _ in range(RUNS)]
            ratio = statistics.median(b / a for a, b in pairs)
            times = [statistics.median(column) for column in zip(*pairs, strict=True)]
            counts = step_instructions(constant), step_instructions(variable)
        told = [f"{c:,.0f}" if c else "not counted" for c in counts]
        growth = f"{counts[1] / counts[0]:.2f}" if all(counts) else "–"
        print(f"| {sequences} | {times[0]:.1f} | {times[1]:.1f} | {ratio:.2f} | {told[0]} | {told[1]} | {growth} |")


def run_time_copy(folder: Path) -> tuple[Path, Path]:
    """The folder and the headers with every integer constant read at run time."""
    config = (folder / "engine_config.hpp").read_text()
    limits = re.findall(r"static constexpr std::int32_t (k\w+) =", config)
    copy = folder.parent / "run-time"
    (copy / "engine").mkdir(parents=True)
    for name, text in run_time_headers(limits).items():
        (copy / name).write_text(text)
    (copy / "engine_config.hpp").write_text(run_time_config(config, limits))
    shutil.copy(folder / "scheduler.hpp", copy)
    return copy, copy


def step_time(program: Path, steps: int) -> float:
    """Median µs of begin_step and of commit, together."""
    output = subprocess.run([str(program), str(steps)], check=True, capture_output=True, text=True).stdout
    medians = {name: float(median) for name, median, _ in re.findall(r"(begin|commit) (\S+) (\S+)", output)}
    return medians["begin"] + medians["commit"]


if __name__ == "__main__":
    main()
