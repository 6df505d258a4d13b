"""How values, sizes and tables are written for people."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from deepinfer_gen.formula import Value

GIB = 1024**3
MIB = 1024**2
KIB = 1024
_LIST_SHOWN = 8


def write_value(value: Value, *, full: bool = False) -> str:
    """A value as people read it: ``1,415,040``, ``6/5``, ``cpu``, ``[1, 2, 4, … 99 items]`` (``full``: every item)."""
    if isinstance(value, tuple):
        shown = value if full or len(value) <= _LIST_SHOWN else value[: _LIST_SHOWN - 2]
        items = ", ".join(write_value(v) for v in shown)
        return f"[{items}]" if len(shown) == len(value) else f"[{items}, … {len(value)} items]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def write_operand(value: Value) -> str:
    """A value inside substituted arithmetic: plain digits, text in quotes, brackets where precedence needs them."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, Fraction) or (isinstance(value, int) and not isinstance(value, bool) and value < 0):
        return f"({value})"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return write_value(value)


def write_bytes(size: int) -> str:
    """A size with a binary unit, three significant digits or more: ``1.35 MiB``; the sign is kept."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size} B"


def columns(rows: Sequence[Sequence[str]], align: str, *, indent: str = "  ", gap: str = "  ") -> list[str]:
    """Rows as text columns; ``align`` has one of ``<`` and ``>`` per column. Trailing spaces are cut."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    return [
        indent + gap.join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    ]


def is_number(value: Value) -> bool:
    """Whether a value is an integer or a fraction (booleans are not)."""
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def number_ranges(numbers: Sequence[int]) -> str:
    """``0–3, 7, 9–12``: numbers as ranges."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
