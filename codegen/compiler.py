"""The C++ compiler: found, identified, run, and its first error reported."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepinfer_gen.diagnostics import Diagnostic, InputError

FLAGS = (
    "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-ffp-contract=off",
    "-Wall", "-Wextra", "-Wconversion", "-Werror",
)  # fmt: skip
"""``-fno-gnu-unique`` keeps the statics of two engines in one process apart; ``-ffp-contract=off`` keeps floating
point equal between machines that fuse multiply-add and machines that do not."""

LEAST_GCC = 12
"""The oldest g++ whose C++20 suffices."""
INSTALL = f"apt-get install g++ (version {LEAST_GCC} or later)"

_PLACE = r"(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)? "
_FIRST_ERROR = re.compile(rf"^(?:{_PLACE})?(?:fatal )?error: (?P<text>.*)$", re.M)
_LINKER_ERROR = re.compile(
    r"^.*(?:undefined reference|multiple definition|cannot find|internal compiler error).*$", re.M
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the command, and the identity that takes part in every cache key."""

    command: tuple[str, ...]
    identity: str

    def run(self, arguments: Sequence[str], work: Path, log: Path, shown_as: str) -> None:
        """Compile or link in ``work``; all output goes to ``log``.

        On failure raises ``InputError`` (DI211) with the first error; files of ``work`` itself are shown as files of
        ``shown_as``.
        """
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=work,
            env={**os.environ, "LC_ALL": "C"},  # the word "error" is looked for
            capture_output=True,
            text=True,
            errors="replace",
        )
        output = done.stdout + done.stderr
        log.write_text(f"$ {shlex.join([*self.command, *arguments])}\n{output}\nexit status {done.returncode}\n")
        if done.returncode != 0:
            raise InputError(_first_error(output, shown_as, log, done.returncode))


def find_compiler() -> Compiler:
    """The compiler of ``$CXX``, or ``g++``. Raises ``InputError`` (DI210) if it cannot be run."""
    chosen = os.environ.get("CXX", "")
    command = tuple(shlex.split(chosen)) or ("g++",)
    if shutil.which(command[0]) is None:
        named = f"$CXX names '{command[0]}', which is" if chosen else "g++ is"
        message = f"{named} not installed; building an engine needs a C++20 compiler"
        raise InputError(Diagnostic("DI210", message, help=INSTALL))
    described = [subprocess.run([*command, q], capture_output=True, text=True) for q in ("--version", "-dumpmachine")]
    if any(d.returncode for d in described):
        message = f"'{shlex.join(command)} --version' fails: {described[0].stderr.strip() or 'no output'}"
        raise InputError(Diagnostic("DI210", message, help=INSTALL))
    version, target = (d.stdout.strip() for d in described)
    return Compiler(command, f"{version.splitlines()[0]} ({target})")


def _first_error(output: str, shown_as: str, log: Path, status: int) -> Diagnostic:
    remedy = f"the whole compiler output is in {log}"
    if status < 0 or "Killed signal" in output:
        remedy = f"the compiler was killed, perhaps for lack of memory; {remedy}"
    if match := _FIRST_ERROR.search(output):
        name, line, column = match["file"] or "", int(match["line"] or 0), int(match["column"] or 0)
        file = name if os.sep in name else str(Path(shown_as) / name)
        return Diagnostic("DI211", f"the engine does not compile: {match['text']}", file, line, column, help=remedy)
    linker = _LINKER_ERROR.search(output)
    detail = linker[0].strip() if linker else f"the compiler ended with status {status}"
    return Diagnostic("DI211", f"the engine does not compile: {detail}", shown_as, help=remedy)
