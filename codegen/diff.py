"""Semantic difference of two engines: changed constants, moved regions, graph sizes, kernels, and stored KV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from deepinfer_gen.codegen.plan import Plan, plain
from deepinfer_gen.codegen.sources import EngineView
from deepinfer_gen.codegen.stored_kv import unreadable_because
from deepinfer_gen.codegen.text import columns, is_number, write_bytes, write_value
from deepinfer_gen.formula import Value, normalise

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; ``old`` or ``new`` is ``ABSENT`` where an engine does not have it."""

    key: str
    old: Value
    new: Value
    unit: str = ""


@dataclass(frozen=True, slots=True)
class EngineDiff:
    """All differences of two engines. ``sizes`` are the graph sizes only A has and only B has."""

    names: tuple[str, str]
    constants: tuple[Change, ...]
    regions: tuple[Change, ...]
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rows: tuple[Change, ...]
    kernels: tuple[Change, ...]
    unreadable: tuple[str, ...]

    @property
    def different(self) -> bool:
        """Whether anything that decides the engines' behaviour differs (where a value was written does not)."""
        return bool(self.constants or self.regions or any(self.sizes) or self.rows or self.kernels)


def diff_engines(a: EngineView, b: EngineView) -> EngineDiff:
    """Compare two engines by meaning; comments, positions and reasons do not count."""
    sizes_a = {g["size"]: g["rows"] for g in a.graphs["graphs"]}
    sizes_b = {g["size"]: g["rows"] for g in b.graphs["graphs"]}
    rows = [
        Change(f"graph {size}", sizes_a[size], sizes_b[size], "rows")
        for size in sorted(set(sizes_a) & set(sizes_b))
        if sizes_a[size] != sizes_b[size]
    ]
    return EngineDiff(
        names=(a.plan.name, b.plan.name),
        constants=tuple(_constants(a.plan, b.plan)),
        regions=tuple(_changes(dict(_regions(a.layout)), dict(_regions(b.layout)), "B")),
        sizes=(tuple(sorted(set(sizes_a) - set(sizes_b))), tuple(sorted(set(sizes_b) - set(sizes_a)))),
        rows=tuple(rows),
        kernels=tuple(_changes(dict(_kernels(a.kernels)), dict(_kernels(b.kernels)), "")),
        unreadable=unreadable_because(a, b),
    )


def diff_lines(diff: EngineDiff) -> list[str]:
    """The report as text."""
    a, b = diff.names
    if not diff.different:
        return [f"{a} and {b} are equal.", *_verdict(diff)]
    lines: list[str] = []
    for title, changes in (
        ("Constants", diff.constants), ("Memory regions", diff.regions), ("Graph rows", diff.rows),
        ("Kernels", diff.kernels),
    ):  # fmt: skip
        if changes:
            rows = [[c.key, write_value(c.old), "→", write_value(c.new), c.unit, _relative(c)] for c in changes]
            lines += [f"{title} ({len(changes)} changed)", *columns(rows, "<><><<"), ""]
    only_a, only_b = diff.sizes
    if only_a or only_b:
        lines.append("Graph sizes")
        lines += [f"  - {write_value(only_a, full=True)}"] if only_a else []
        lines += [f"  + {write_value(only_b, full=True)}"] if only_b else []
        lines.append("")
    return lines + _verdict(diff)


def diff_json(diff: EngineDiff) -> dict[str, Any]:
    """The report as data."""

    def listed(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
        return [{"key": c.key, "old": plain(c.old), "new": plain(c.new), "unit": c.unit} for c in changes]

    return {
        "a": diff.names[0],
        "b": diff.names[1],
        "different": diff.different,
        "constants": listed(diff.constants),
        "regions": listed(diff.regions),
        "graph_sizes": {"removed": list(diff.sizes[0]), "added": list(diff.sizes[1])},
        "graph_rows": listed(diff.rows),
        "kernels": listed(diff.kernels),
        "stored_kv": {"readable": not diff.unreadable, "reasons": list(diff.unreadable)},
    }


def _verdict(diff: EngineDiff) -> list[str]:
    a, b = diff.names
    if not diff.unreadable:
        return [f"KV stored by {a} can be read by {b}."]
    return [f"KV stored by {a} can NOT be read by {b}:", *(f"  {reason}" for reason in diff.unreadable)]


def _constants(a: Plan, b: Plan) -> Iterator[Change]:
    for key in sorted({*a, *b}):
        old, new = a.values.get(key), b.values.get(key)
        if old is None or new is None or (old.value, old.unit) != (new.value, new.unit):
            unit = (new or old).unit  # type: ignore[union-attr]
            yield Change(key, old.value if old else ABSENT, new.value if new else ABSENT, unit)


def _regions(layout: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Offset and size of every region under a readable name."""
    for part in ("block", "state"):
        for region in layout[part]["regions"]:
            yield f"{part} {region['name']} offset", region["offset"]
            yield f"{part} {region['name']} bytes", region["bytes"]
            yield f"{part} {region['name']} padding", region["padding"]
    for region in layout["block"]["regions"]:
        for rows in ("main", "index"):
            yield f"block {region['name']} {rows} offset", region[rows]["offset"]


def _kernels(kernels: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, kernel in kernels["kernels"].items():
        for field, value in kernel.items():
            if field == "why":
                continue
            if isinstance(value, Mapping):
                yield from ((f"{name} {field}.{inner}", normalise(v)) for inner, v in value.items())
            else:
                yield f"{name} {field}", normalise(value)


def _changes(old: Mapping[str, Value], new: Mapping[str, Value], unit: str) -> Iterator[Change]:
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, ABSENT), new.get(key, ABSENT)
        if before != after:
            yield Change(key, before, after, unit)


def _relative(change: Change) -> str:
    """``+50.0 %``, and for bytes the difference in a readable unit."""
    old, new = change.old, change.new
    if isinstance(old, tuple) or isinstance(new, tuple) or not (is_number(old) and is_number(new)):
        return ""
    difference = Fraction(new) - Fraction(old)  # type: ignore[arg-type]
    relative = f"{float(100 * difference / old):+.1f} %" if old else ""  # type: ignore[operator]
    if change.unit == "B" and abs(difference) >= 1024:
        return f"{'+' if difference > 0 else ''}{write_bytes(int(difference))} {relative}".rstrip()
    return relative or f"{int(difference):+,}"
