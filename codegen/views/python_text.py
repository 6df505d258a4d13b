"""Python expressions as text, in the layout that the formatter of this repository gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

LINE_LENGTH = 120
_INDENT = 4


def expression(value: Any, column: int = 0, indent: int = 0) -> str:
    """``value`` as an expression that starts at ``column`` of a line indented by ``indent``.

    Dataclass instances become calls of their class with keyword arguments. What does not fit the line is written one
    element a line, each with a trailing comma.
    """
    flat = _flat(value)
    if column + len(flat) + 1 <= LINE_LENGTH:
        return flat
    parts = _parts(value)
    if parts is None:
        return flat
    inner = indent + _INDENT
    lines = [parts.opening]
    for prefix, item in parts.items:
        lines.append(" " * inner + prefix + expression(item, inner + len(prefix), inner) + ",")
    lines.append(" " * indent + parts.closing)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Parts:
    opening: str
    items: tuple[tuple[str, Any], ...]
    closing: str


def _parts(value: Any) -> _Parts | None:
    if is_dataclass(value):
        items = tuple((f"{field.name}=", getattr(value, field.name)) for field in fields(value))
        return _Parts(f"{type(value).__name__}(", items, ")")
    if isinstance(value, Mapping):
        return _Parts("{", tuple((f"{_flat(key)}: ", item) for key, item in value.items()), "}")
    if isinstance(value, tuple):
        return _Parts("(", tuple(("", item) for item in value), ")")
    return None


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    parts = _parts(value)
    if parts is None:
        return repr(value)
    body = ", ".join(prefix + _flat(item) for prefix, item in parts.items)
    single = isinstance(value, tuple) and len(value) == 1
    return f"{parts.opening}{body}{',' if single else ''}{parts.closing}"


def _quoted(text: str) -> str:
    """A string literal in double quotes, unless that would need more escapes."""
    literal = repr(text)
    if literal.startswith("'") and '"' not in text:
        return '"' + literal[1:-1] + '"'
    return literal
