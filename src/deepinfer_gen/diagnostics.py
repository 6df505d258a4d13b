"""User-facing errors: one diagnostic per fault, each with a place, the offending values and a remedy.

Nothing here prints. The command line renders diagnostics as text, JSON or GitHub annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_DRIFT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 3
EXIT_REQUEST_FAILED = 4


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault in the user's input.

    ``code`` is stable (``DI012``); ``message`` is one sentence with the offending values; ``help`` is the remedy.
    ``file`` is shown as the user named it; ``line`` and ``column`` count from 1, 0 means unknown; ``excerpt`` is the
    source line for the caret.
    """

    code: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    excerpt: str = ""
    help: str = ""

    @property
    def place(self) -> str:
        """``file:line:col``, or as much of it as is known."""
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)]) if self.file else ""

    def as_text(self) -> str:
        """GNU style: ``place: error[CODE]: sentence``, the source line with a caret, and ``help:``."""
        lines = [
            f"{self.place}: error[{self.code}]: {self.message}" if self.file else f"error[{self.code}]: {self.message}"
        ]
        if self.excerpt and self.column:
            lines += [f"    {self.excerpt}", f"    {' ' * (self.column - 1)}^"]
        if self.help:
            lines.append(f"help: {self.help}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str | int]:
        """The machine-readable form, one JSON object per fault."""
        return {
            "code": self.code,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "help": self.help,
        }

    def as_github(self) -> str:
        """A GitHub Actions annotation."""
        text = self.message + (f" help: {self.help}" if self.help else "")
        escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        fields = [f"title={self.code}"]
        if self.file:
            fields.insert(0, f"file={self.file}")
        if self.line:
            fields.insert(1, f"line={self.line}")
            fields.insert(2, f"col={self.column}")
        return f"::error {','.join(fields)}::{escaped}"


class InputError(Exception):
    """The user's input is wrong: exit status 2, every diagnostic shown, never a traceback."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        super().__init__("\n".join(d.as_text() for d in self.diagnostics))


def render_diagnostics(diagnostics: Iterable[Diagnostic], error_format: str) -> str:
    """Render all faults of a run as ``text``, ``json`` (one object a line) or ``github``."""
    if error_format == "json":
        return "\n".join(json.dumps(d.as_dict(), ensure_ascii=False, sort_keys=True) for d in diagnostics)
    if error_format == "github":
        return "\n".join(d.as_github() for d in diagnostics)
    return "\n".join(d.as_text() for d in diagnostics)
