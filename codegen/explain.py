"""Explanations: where a Plan value comes from, as a tree of traced values down to its roots."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from deepinfer_gen.codegen.plan import Plan, Traced
from deepinfer_gen.codegen.text import columns, write_operand, write_value
from deepinfer_gen.formula import operand_names


def matching_keys(plan: Plan, pattern: str) -> list[str]:
    """Keys that a glob (``state.*``) or a dotted prefix (``state``) names; empty when there are none."""
    if any(c in pattern for c in "*?["):
        return [k for k in plan if fnmatchcase(k, pattern)]
    prefix = pattern.rstrip(".") + "."
    return [k for k in plan if k.startswith(prefix)]


def list_keys(plan: Plan, keys: list[str]) -> list[str]:
    """One line per key: the key, its value with unit, and why it exists."""
    traced = [plan.values[k] for k in keys]
    return columns([(t.key, "=", _with_unit(t), t.why) for t in traced], "<<<<", indent="")


def explain_lines(plan: Plan, key: str, *, full: bool = False, depth: int | None = None) -> list[str]:
    """The tree below ``key`` as text, ``depth`` levels of it. What was explained before is named and not repeated."""
    return list(_node(plan, key, "", "", set(), full, depth))


def explain_json(plan: Plan, key: str) -> dict[str, Any]:
    """The same tree as data: every value that ``key`` depends on, once, under its key."""
    reached: dict[str, Any] = {}
    pending = [key]
    while pending:
        traced = plan.values[pending.pop()]
        if traced.key in reached:
            continue
        reached[traced.key] = {**traced.as_dict(), "numbers": substituted(plan, traced)}
        pending += traced.inputs
    return {"key": key, "values": dict(sorted(reached.items()))}


def substituted(plan: Plan, traced: Traced) -> str:
    """The formula with numbers in place of names; empty when the formula is words or the names were not kept."""
    operands = dict(traced.operands)
    try:
        tree = ast.parse(traced.formula, mode="eval")
    except SyntaxError:
        return ""
    if not operands or not set(operand_names(traced.formula)) <= set(operands):
        return ""
    places = sorted(
        (n.col_offset, n.end_col_offset, n.id) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in operands
    )
    text, at = "", 0
    encoded = traced.formula.encode()  # ast counts columns in UTF-8 bytes
    for start, end, name in places:
        text += encoded[at:start].decode() + write_operand(plan[operands[name]])
        at = end or len(encoded)
    return text + encoded[at:].decode()


def _node(plan: Plan, key: str, first: str, rest: str, seen: set[str], full: bool, depth: int | None) -> Iterator[str]:
    traced = plan.values[key]
    head = f"{first}{key} = {_with_unit(traced, full=full and not first)}"
    if key in seen and traced.inputs:
        yield f"{head}   (explained above)"
        return
    if depth == 0 and traced.inputs:
        yield f"{head}   …"
        return
    seen.add(key)
    bar = rest + ("│    " if traced.inputs else "     ")
    if traced.source and not traced.formula:
        yield f"{head}   ← {traced.source}"
    else:
        yield head
        numbers = substituted(plan, traced)
        yield f"{bar}= {traced.formula}"
        if numbers and numbers != traced.formula:
            yield f"{bar}= {numbers}"
        if traced.source:
            yield f"{bar}← {traced.source}"
    if traced.why:
        yield f"{bar}{traced.why}"
    for position, child in enumerate(traced.inputs):
        last = position == len(traced.inputs) - 1
        below = None if depth is None else depth - 1
        lead, indent = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _node(plan, child, rest + lead, rest + indent, seen, full, below)


def _with_unit(traced: Traced, *, full: bool = False) -> str:
    return f"{write_value(traced.value, full=full)} {traced.unit}".rstrip()
