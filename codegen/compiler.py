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
        """Compile or link in ``work``, into the file that the last argument names; all output goes to ``log``.

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
        result = work / arguments[-1]
        if done.returncode != 0 or not result.is_file():
            raise InputError(_first_error(output, shown_as, log, done.returncode))


def find_compiler() -> Compiler:
    """The compiler of ``$CXX``, or ``g++``. Raises ``InputError`` (DI210) if it is missing or broken."""
    chosen = os.environ.get("CXX", "")
    try:
        command = tuple(shlex.split(chosen)) or ("g++",)
    except ValueError as fault:
        raise _unusable(f"$CXX is {chosen!r}, which is no command: {fault}") from None
    found = shutil.which(command[0])
    if found is None:
        named = f"$CXX names '{command[0]}', which is" if chosen.strip() else "g++ is"
        raise _unusable(f"{named} not installed; building an engine needs a C++20 compiler")
    if os.sep in command[0]:
        command = (os.path.abspath(found), *command[1:])  # it runs in a folder of its own
    version, target = (_answer(command, question) for question in ("--version", "-dumpmachine"))
    return Compiler(command, f"{version.splitlines()[0]} ({target})")


def _answer(command: tuple[str, ...], question: str) -> str:
    """What the compiler says of itself, never empty."""
    shown = f"'{shlex.join([*command, question])}'"
    try:
        done = subprocess.run([*command, question], capture_output=True, text=True, errors="replace")
    except OSError as fault:
        raise _unusable(f"{shown} cannot be run: {fault.strerror}") from None
    if done.returncode or not done.stdout.strip():
        raise _unusable(f"{shown} fails: {done.stderr.strip() or 'no output'}")
    return done.stdout.strip()


def _unusable(message: str) -> InputError:
    return InputError(Diagnostic("DI210", message, help=f"{INSTALL}, or set CXX to one"))


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
