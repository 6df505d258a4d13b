"""Where the body of a Python function ends in a text that goes on, and what stands in it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum

_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_OPEN, _CLOSED = "([{", ")]}"


class End(Enum):
    """What ended a body: a line that belongs to something else, the end of the text, or the limit of its tokens."""

    DEDENT = "dedent"
    EOS = "eos"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements of a body: ``nested`` are all in it but lone strings, ``top`` its own with the docstring."""

    nested: int
    top: int


def cut_at_dedent(head: str, text: str, *, finished: bool) -> tuple[str, End]:
    """The part of ``text`` that is the body of the function whose ``head`` stands before it, and what ended it.

    ``head`` ends with the colon. The body ends before the first line that is indented no more than the head; blank
    lines, comments and the inner lines of strings, brackets and joined lines do not end it, as in Python. A text that
    ends first is kept whole if it is ``finished``, else up to its last whole line.
    """
    least, reader, ends = indentation(head), _LineReader(), 0
    lines = _LINE.findall(text)
    for number, line in enumerate(lines):
        if not reader.begins_statement or _is_code(line):
            if number and reader.begins_statement and indentation(line) <= least:
                # Comments behind the last code belong to what follows.
                return "".join(lines[:ends]), End.DEDENT
            ends = number + 1
        reader.read(line)
    if finished:
        return text, End.EOS
    return "".join(line for line in lines if line.endswith("\n")), End.LIMIT


def count_statements(head: str, body: str) -> Statements | None:
    """Statements of the body if ``head`` and ``body`` parse as one function; None if they do not."""
    # An indented function is parsed inside a block: taking its indentation away would change its strings.
    outer = "if True:\n" if indentation(head) else ""
    try:
        parsed: ast.Module | ast.If = ast.parse(outer + head + body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if outer:
        assert isinstance(parsed.body[0], ast.If)
        parsed = parsed.body[0]
    function = parsed.body[0]
    if len(parsed.body) != 1 or not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    inside = [node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.stmt)]
    return Statements(sum(not _is_lone_string(node) for node in inside), len(function.body))


def indentation(line: str) -> int:
    """Columns before the first character of ``line``; a tab reaches to the next multiple of eight, as in Python."""
    expanded = line.expandtabs()
    return len(expanded) - len(expanded.lstrip(" \f"))


class _LineReader:
    """What the next line is part of, told from those before it: a string, brackets, a joined line, or a statement."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0
        self._joined = False

    @property
    def begins_statement(self) -> bool:
        """Whether the next line begins a statement."""
        return not self._quote and not self._depth and not self._joined

    def read(self, line: str) -> None:
        """Follow one line, its line break included."""
        at, self._joined = 0, False
        while at < len(line):
            if line[at] == "\\":
                self._joined = line[at + 1 :] in {"\n", "\r\n"}
                at += 2
            elif self._quote:
                closed = line.startswith(self._quote, at)
                at += len(self._quote) if closed else 1
                self._quote = "" if closed else self._quote
            elif line[at] == "#":
                return
            elif quote := _QUOTE.match(line, at):
                self._quote = quote.group()
                at = quote.end()
            else:
                self._depth = max(0, self._depth + (line[at] in _OPEN) - (line[at] in _CLOSED))
                at += 1
        # A string of one quote ends with its line, unless a backslash carries it on.
        if len(self._quote) == 1 and not self._joined:
            self._quote = ""


def _is_code(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


def _is_lone_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
