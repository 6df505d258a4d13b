"""The arithmetic in the comments of golden files: ``key: value  # = expression; words``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

_LINE = re.compile(r"^\s*(?P<key>[\w.]+):\s*(?P<value>\d+)\s+# = (?P<expression>[^;=]+?)\s*(?:;.*)?$")
_ALLOWED = re.compile(r"(?:\d+|max|min|ceil|floor|[-+*/(), ])+")


def commented_values(path: Path) -> Iterator[tuple[str, int, Fraction]]:
    """``(key, value, value of the comment's expression)`` of every line of ``path`` that has one."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _LINE.match(line):
            yield match["key"], int(match["value"]), _evaluate(match["expression"])
        elif "# = " in line:
            raise ValueError(f"{path.name}: not 'key: value  # = expression': {line}")


def _evaluate(expression: str) -> Fraction:
    if not _ALLOWED.fullmatch(expression):
        raise ValueError(f"not plain arithmetic: {expression}")
    exact = re.sub(r"\d+", r"Fraction(\g<0>)", expression)
    names = {"Fraction": Fraction, "max": max, "min": min, "ceil": math.ceil, "floor": math.floor, "__builtins__": {}}
    return Fraction(eval(exact, names))
