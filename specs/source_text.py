"""Input files as text with positions, and the diagnostics that point into them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deepinfer_gen.diagnostics import Diagnostic, InputError

_LINE_BREAK = re.compile("\r\n|[\n\r]")  # those of YAML 1.2 and of JSON
_MAX_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file, counted from 1; 0 is unknown."""

    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text file: ``shown`` is its name as the user typed it, ``base`` its base name, for sources in the Plan."""

    shown: str
    base: str
    text: str

    def excerpt(self, line: int) -> str:
        """The text of ``line`` (from 1), every control character shown as a space so that the caret lines up."""
        lines = _lines(self.text)
        if not 1 <= line <= len(lines):
            return ""
        return "".join(c if c.isprintable() else " " for c in lines[line - 1]).rstrip()

    def error(self, code: str, message: str, place: Place, help_: str = "") -> Diagnostic:
        """A diagnostic at ``place``; an overlong source line shows no excerpt, what cannot be printed is escaped."""
        message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
        excerpt = self.excerpt(place.line)
        if len(excerpt) > _MAX_EXCERPT:
            excerpt = ""
        return Diagnostic(code, message, self.shown, place.line, place.column, excerpt, help_)

    def source(self, place: Place) -> str:
        """``file:line:col`` by base name, or the name alone where there is no line."""
        return f"{self.base}:{place.line}:{place.column}" if place.line else self.base

    def place_of(self, offset: int) -> Place:
        """The position of the character at ``offset``."""
        line = 1
        start = 0
        for found in _LINE_BREAK.finditer(self.text, 0, offset):
            line += 1
            start = found.end()
        return Place(line, offset - start + 1)


def read_source(path: Path, shown: str, max_bytes: int, what: str) -> SourceText:
    """Read a UTF-8 text file of at most ``max_bytes``.

    Raises ``InputError``: DI001 (cannot be read), DI002 (too large), DI003 (not UTF-8).
    """
    try:
        if path.is_dir():
            raise _fault("DI001", f"{what} is a folder, not a file", shown, "name the file itself")
        if path.exists() and not path.is_file():
            raise _fault("DI001", f"{what} is no regular file", shown, "name a plain text file")
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise _fault("DI001", f"{what} does not exist", shown, "check the path") from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else "the name is not a valid path"
        raise _fault("DI001", f"{what} cannot be read: {reason}", shown, "check the path and its permissions") from None
    if len(data) > max_bytes:
        raise _fault("DI002", f"{what} is larger than {max_bytes} bytes", shown, "is this the right file?")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as fault:
        place = _end_of(data[: fault.start].decode("utf-8"))
        message = f"{what} is not UTF-8: byte 0x{data[fault.start]:02x} at offset {fault.start}"
        raise InputError(
            Diagnostic("DI003", message, shown, place.line, place.column, "", "save the file as UTF-8")
        ) from None
    return SourceText(shown, path.name, text.removeprefix("\ufeff"))


@lru_cache(maxsize=8)
def _lines(text: str) -> tuple[str, ...]:
    return tuple(_LINE_BREAK.split(text))


def _end_of(text: str) -> Place:
    return SourceText("", "", text).place_of(len(text))


def _fault(code: str, message: str, shown: str, help_: str) -> InputError:
    return InputError(Diagnostic(code, message, shown, help=help_))
