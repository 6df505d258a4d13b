"""Python expressions as text, in the layout that the formatter of this repository gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

LINE_LENGTH = 120
_INDENT = 4


def expression(value: Any, column: int = 0, indent: int = 0) -> str:
    """``value`` as an expression that starts at ``column`` of a line indented by ``indent``.

    Dataclass instances become calls of their class with keyword arguments. What does not fit the line is written one
    element a line, each with a trailing comma.
    """
    return _laid_out(_text(value), column, indent)


@dataclass(frozen=True, slots=True)
class _Text:
    """A value on one line, and its parts for when that line is too long; a value without parts has no brackets."""

    flat: str
    items: tuple[tuple[str, _Text], ...] = ()
    brackets: tuple[str, str] | None = None


def _laid_out(text: _Text, column: int, indent: int) -> str:
    if column + len(text.flat) + 1 <= LINE_LENGTH or text.brackets is None:
        return text.flat
    opening, closing = text.brackets
    inner = indent + _INDENT
    margin = " " * inner
    lines = [f"{margin}{prefix}{_laid_out(item, inner + len(prefix), inner)}," for prefix, item in text.items]
    return "\n".join([opening, *lines, " " * indent + closing])


def _text(value: Any) -> _Text:
    if isinstance(value, str):
        return _Text(_quoted(value))
    if isinstance(value, tuple):
        return _bracketed("(", [("", item) for item in value], ",)" if len(value) == 1 else ")")
    if isinstance(value, Mapping):
        return _bracketed("{", [(f"{_text(key).flat}: ", item) for key, item in value.items()], "}")
    if is_dataclass(value):
        items = [(f"{field.name}=", getattr(value, field.name)) for field in fields(value)]
        return _bracketed(f"{type(value).__name__}(", items, ")")
    return _Text(repr(value))


def _bracketed(opening: str, items: Iterable[tuple[str, Any]], closing: str) -> _Text:
    texts = tuple((prefix, _text(item)) for prefix, item in items)
    flat = opening + ", ".join([prefix + text.flat for prefix, text in texts]) + closing
    return _Text(flat, texts, (opening, closing[-1]))


def _quoted(text: str) -> str:
    """A string literal in double quotes, unless that would need more escapes."""
    literal = repr(text)
    if literal.startswith("'") and '"' not in text:
        return '"' + literal[1:-1] + '"'
    return literal
