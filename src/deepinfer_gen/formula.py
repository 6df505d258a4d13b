"""Formulas that are both the explanation and the computation.

A derived constant is written once, as an arithmetic expression over named operands. The same text is evaluated to
give the value and printed to explain it, so the two cannot drift apart. Arithmetic is exact: ``/`` gives a
``Fraction``, an integral result is returned as ``int``, and ``round`` rounds halves to even.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

Scalar = int | Fraction | str | bool | None
Value = Scalar | tuple[Scalar, ...]


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer division rounded up."""
    return -(-numerator // denominator)


def align(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``."""
    return ceil_div(size, alignment) * alignment


def clamp(value: int, low: int, high: int) -> int:
    """``value`` limited to ``low .. high``."""
    return max(low, min(high, value))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "align": align, "ceil": math.ceil, "ceil_div": ceil_div, "clamp": clamp, "count": len,
    "floor": math.floor, "max": max, "min": min, "round": round, "sum": sum,
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.Div: Fraction,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def evaluate(expression: str, operands: Mapping[str, Value]) -> Value:
    """Evaluate ``expression`` exactly.

    Allowed are integers, strings, operand names, ``+ - * / // % **``, comparisons, ``a if c else b`` and the functions
    ``abs align ceil ceil_div clamp count floor max min sum``. Anything else raises ``ValueError``.
    """
    return normalise(_evaluate(_parse(expression), operands))


@lru_cache(maxsize=1024)
def operand_names(expression: str) -> tuple[str, ...]:
    """The operand names of ``expression``, in order of first appearance, function names left out."""
    names = [n.id for n in ast.walk(_parse(expression)) if isinstance(n, ast.Name)]
    return tuple(dict.fromkeys(n for n in names if n not in _FUNCTIONS))


@lru_cache(maxsize=1024)
def _parse(expression: str) -> ast.expr:
    """The syntax tree of ``expression``; cached because layers repeat the same few formulas."""
    return ast.parse(expression, mode="eval").body


def normalise(value: Any) -> Value:
    """Integral fractions become ``int``, sequences become tuples."""
    if isinstance(value, (int, str)):  # first, and not by way of Sequence: lists of 100,000 entries pass here
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    if isinstance(value, Sequence):
        return tuple(normalise(v) for v in value)  # type: ignore[misc]
    return value  # type: ignore[no-any-return]


def _evaluate(node: ast.expr, operands: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant(value=int() | str() as value):
            return value
        case ast.Name(id=name):
            if name not in operands:
                raise ValueError(f"formula names '{name}', which is no operand: {sorted(operands)}")
            return operands[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, operands), _evaluate(right, operands))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, operands)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_evaluate(left, operands), _evaluate(right, operands))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, operands) else orelse, operands)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_evaluate(a, operands) for a in args))
    raise ValueError(f"formula element not allowed: {ast.unparse(node)}")
