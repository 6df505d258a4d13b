"""Semantic difference of two engines: changed constants, moved regions, graph sizes, kernels, and stored KV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from deepinfer_gen.canonical import plain
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.sources import EngineView
from deepinfer_gen.codegen.stored_kv import arithmetic_note, unreadable_because
from deepinfer_gen.codegen.text import columns, is_number, write_bytes, write_value
from deepinfer_gen.formula import Value, normalise

ABSENT = "(absent)"
_OWN_SECTION = re.compile(r"state\.[a-z_]+\.\d+\.|kv\.source\.\d+\.|graphs\.(sizes|rows|lookup)$|kernels\.")
"""Plan keys that are compared as regions, graphs and kernels and not listed a second time."""


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
    settings: tuple[Change, ...]
    derived: tuple[Change, ...]
    regions: tuple[Change, ...]
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rows: tuple[Change, ...]
    kernels: tuple[Change, ...]
    unreadable: tuple[str, ...]
    note: str

    @property
    def different(self) -> bool:
        """Whether anything that decides the engines' behaviour differs (where a value was written does not)."""
        return bool(self.settings or self.derived or self.regions or any(self.sizes) or self.rows or self.kernels)


def diff_engines(a: EngineView, b: EngineView) -> EngineDiff:
    """Compare two engines by meaning; comments, positions and reasons do not count."""
    sizes_a = {g["size"]: g["rows"] for g in a.graphs["graphs"]}
    sizes_b = {g["size"]: g["rows"] for g in b.graphs["graphs"]}
    rows = [
        Change(f"graph {size}", sizes_a[size], sizes_b[size], "rows")
        for size in sorted(set(sizes_a) & set(sizes_b))
        if sizes_a[size] != sizes_b[size]
    ]
    constants = list(_constants(a.plan, b.plan))
    return EngineDiff(
        names=(a.plan.name, b.plan.name),
        settings=tuple(c for c in constants if _is_setting(a.plan, b.plan, c.key)),
        derived=tuple(c for c in constants if not _is_setting(a.plan, b.plan, c.key)),
        regions=tuple(_changes(dict(_regions(a.layout)), dict(_regions(b.layout)), "B")),
        sizes=(tuple(sorted(set(sizes_a) - set(sizes_b))), tuple(sorted(set(sizes_b) - set(sizes_a)))),
        rows=tuple(rows),
        kernels=tuple(_changes(dict(_kernels(a.kernels)), dict(_kernels(b.kernels)), "")),
        unreadable=unreadable_because(a, b),
        note=arithmetic_note(a.plan, b.plan),
    )


def diff_lines(diff: EngineDiff) -> list[str]:
    """The report as text."""
    a, b = diff.names
    if not diff.different:
        return [f"{a} and {b} are equal.", *_verdict(diff)]
    lines: list[str] = []
    for title, changes in (("Settings", diff.settings), ("Derived constants", diff.derived), ("Graph rows", diff.rows)):
        lines += _section(title, changes)
    lines += [f"Memory regions ({len(diff.regions)} changes)", *_region_lines(diff.regions), ""] if diff.regions else []
    lines += _section("Kernels", diff.kernels)
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
        "settings": listed(diff.settings),
        "derived": listed(diff.derived),
        "regions": listed(diff.regions),
        "graph_sizes": {"removed": list(diff.sizes[0]), "added": list(diff.sizes[1])},
        "graph_rows": listed(diff.rows),
        "kernels": listed(diff.kernels),
        "stored_kv": {"readable": not diff.unreadable, "reasons": list(diff.unreadable), "note": diff.note},
    }


def _section(title: str, changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    rows = [[c.key, write_value(c.old), "→", write_value(c.new), c.unit, _relative(c)] for c in changes]
    return [f"{title} ({len(changes)} changed)", *columns(rows, "<><><<"), ""]


def _region_lines(changes: Sequence[Change]) -> list[str]:
    """One line per region with everything that changed in it."""
    rows = [
        [name, ", ".join(f"{c.key.removeprefix(name)[1:]} {write_value(c.old)} → {write_value(c.new)}" for c in group)]
        for name, group in groupby(changes, key=lambda c: " ".join(c.key.split()[:2]))
    ]
    return columns(rows, "<<")


def _verdict(diff: EngineDiff) -> list[str]:
    a, b = diff.names
    if not diff.unreadable:
        return [f"KV stored by {a} can be read by {b}" + (f"; {diff.note}." if diff.note else ".")]
    return [f"KV stored by {a} can NOT be read by {b}:", *(f"  {reason}" for reason in diff.unreadable)]


def _constants(a: Plan, b: Plan) -> Iterator[Change]:
    for key in sorted({*a, *b}):
        if _OWN_SECTION.match(key):
            continue
        old, new = a.values.get(key), b.values.get(key)
        if old is None or new is None or (old.value, old.unit) != (new.value, new.unit):
            unit = (new or old).unit  # type: ignore[union-attr]
            yield Change(key, old.value if old else ABSENT, new.value if new else ABSENT, unit)


def _is_setting(a: Plan, b: Plan, key: str) -> bool:
    """Whether somebody chose the value (spec, default, model config, hardware table); derived ones have no source."""
    return any(key in plan and plan.values[key].source for plan in (a, b))


def _regions(layout: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Every offset, size and padding under a readable name: ``PART REGION FIELD``."""
    for part in ("block", "state"):
        for region in layout[part]["regions"]:
            yield from ((f"{part} {region['name']} {field}", region[field]) for field in ("offset", "bytes", "padding"))
            for rows in ("main", "index") if part == "block" else ():
                yield f"{part} {region['name']} {rows} offset", region[rows]["offset"]
                if "scales" in region[rows]:
                    yield f"{part} {region['name']} {rows} scales offset", region[rows]["scales"]["offset"]


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
