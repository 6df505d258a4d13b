"""Every wrong scheduler must be caught: ``python tests/sim/run_mutants.py [NAME ...]``.

Each patch under ``mutants`` makes one fault in a copy of the engine headers. Its second line names the program that
must notice: that program is compiled with the copy and has ten seconds of processor time to end with a rule's name.
Without a fault every program must end well. Exits with 1 if a fault is not caught.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SIM = Path(__file__).resolve().parent
HEADERS = SIM.parents[1] / "templates" / "engine"
MUTANTS = SIM / "mutants"
SECONDS = 10
COMPILE = ("g++", "-std=c++20", "-O0", "-ffp-contract=off", "-D_GLIBCXX_ASSERTIONS")


@dataclass(frozen=True, slots=True)
class Checker:
    """A program that notices faults: its source, what is linked to it and knows no scheduler, and its arguments."""

    source: str
    linked: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


GROUPS = ("one_place", "two_places", "few_blocks", "padded", "exchange")
"""Programs that visit every state of small groups of ranks."""
CALLS = ("calls_fixed", "calls_varlen")
"""Programs that make random calls on one engine, wrong ones included."""
WORLDS = ("world_varlen",)
"""Programs that play seeds of the simulation."""
CHECKERS = {
    **{name: Checker(name) for name in GROUPS},
    **{name: Checker(name, ("fuzz_calls", "fuzz_replay"), ("--random", "1", "1000")) for name in CALLS},
    **{name: Checker(name, ("simulation",), ("--seeds", "0", "150")) for name in WORLDS},
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant: the rule that it broke, or why it counts as not caught."""

    name: str
    checker: str
    caught: bool
    text: str
    seconds: float = 0


def compile_to(output: Path, include: Path, *arguments: str) -> None:
    """Compile with the headers below ``include``; ``RuntimeError`` with the compiler's words."""
    command = [*COMPILE, "-I", str(include), "-I", str(SIM), *arguments, "-o", str(output)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"does not compile:\n{built.stderr[:2000]}")


def run_checker(name: str, include: Path, program: Path) -> tuple[int, str, float]:
    """Compile with the headers below ``include`` and run: exit status, output and seconds of running."""
    checker = CHECKERS[name]
    objects = [str(program.parents[1] / "linked" / f"{source}.o") for source in checker.linked]
    compile_to(program, include, str(MUTANTS / f"{checker.source}.cpp"), *objects)
    start = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f'ulimit -t {SECONDS} && exec "$@"', "sh", str(program), *checker.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - start


def rule_in(output: str) -> str:
    """The first line that is not the count of a clean group; empty if there is none."""
    return next((line for line in output.splitlines() if line and " moves " not in line), "")


def judge(patch: Path, scratch: Path) -> Verdict:
    """Apply one patch to a copy of the headers and see whether its checker notices."""
    checker = patch.read_text(encoding="utf-8").splitlines()[1].removeprefix("# Checker: ")
    folder = scratch / patch.stem
    shutil.copytree(HEADERS, folder / "engine")
    applied = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)], cwd=folder, capture_output=True, text=True, check=False
    )
    if applied.returncode != 0:
        return Verdict(patch.stem, checker, False, f"does not apply: {applied.stderr.strip()}")
    try:
        status, output, seconds = run_checker(checker, folder, folder / "program")
    except RuntimeError as fault:
        return Verdict(patch.stem, checker, False, str(fault))
    rule = rule_in(output)
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(patch.stem, checker, False, f"no end within {SECONDS} s", seconds)
    if status == 0 or not rule:
        return Verdict(patch.stem, checker, False, f"status {status}, no rule named", seconds)
    return Verdict(patch.stem, checker, True, rule, seconds)


def sound(name: str, scratch: Path) -> Verdict:
    """Without a fault the program must end well."""
    folder = scratch / name
    folder.mkdir()
    try:
        status, output, seconds = run_checker(name, HEADERS.parent, folder / "program")
    except RuntimeError as fault:
        return Verdict("(none)", name, False, str(fault))
    return Verdict("(none)", name, status == 0, "no rule broken" if status == 0 else output[-500:], seconds)


def main(names: list[str]) -> int:
    """Judge all mutants, or those whose file names contain one of ``names``."""
    patches = [p for p in sorted(MUTANTS.glob("*.patch")) if not names or any(n in p.stem for n in names)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        scratch = Path(folder)
        (scratch / "linked").mkdir()
        for source in sorted({s for checker in CHECKERS.values() for s in checker.linked}):
            compile_to(scratch / "linked" / f"{source}.o", HEADERS.parent, "-c", str(SIM / f"{source}.cpp"))
        jobs = [pool.submit(sound, name, scratch) for name in CHECKERS]
        jobs += [pool.submit(judge, patch, scratch) for patch in patches]
        missed = 0
        for job in jobs:
            verdict = job.result()
            missed += not verdict.caught
            mark = " " if verdict.caught else "!"
            print(f"{mark} {verdict.name:32} {verdict.checker:13} {verdict.seconds:5.1f} s  {verdict.text}", flush=True)
    print(f"{len(patches)} wrong schedulers, {missed} findings")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
