"""``fit``: what fits into the memory of one rank, which limit binds, and how far each limit can go.

Every answer comes from the real ``derive``; nothing is estimated. "fits" means that the fixed parts and the KV of one
longest sequence fit; "full" that ``max_num_seqs`` sequences of ``max_model_len`` tokens have blocks at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from deepinfer_gen.codegen.memory_report import MemoryTable, memory_json, memory_table
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.sources import plan_spec_unfit
from deepinfer_gen.codegen.text import GIB, columns, write_bytes
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.fields import spec_fields

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """How far ``key`` can go: ``now`` is its value, ``fits`` and ``full`` the extreme values; None where none does.

    ``beyond`` says what stops the next value after ``fits``.
    """

    question: str
    key: str
    now: int
    fits: int | None
    full: int | None
    beyond: str


@dataclass(frozen=True, slots=True)
class FitReport:
    """The plan as written, the plan with the overrides (None without overrides), and the answers about the latter."""

    before: Plan
    after: Plan | None
    fault: InputError | None
    answers: tuple[Answer, ...]

    @property
    def asked(self) -> Plan:
        """The plan that the question is about."""
        return self.after or self.before


@dataclass(frozen=True, slots=True)
class _Trial:
    """One value tried: whether it fits, whether every sequence can be full, and what is wrong if not."""

    fits: bool
    full: bool
    reason: str


def fit_report(spec: str, overrides: Mapping[str, str]) -> FitReport:
    """Plan ``spec`` with and without ``overrides`` and search the limits. Raises ``InputError`` for an invalid one."""
    before, fault = plan_spec_unfit(spec)
    after = None
    if overrides:
        after, fault = plan_spec_unfit(spec, overrides)

    @cache
    def trial(**changes: int) -> _Trial:
        return _try(spec, {**overrides, **{k: str(v) for k, v in changes.items()}})

    asked = after or before
    answers = (
        _largest(asked, "limits.max_num_seqs", trial),
        _largest(asked, "limits.max_model_len", trial),
        _least_ep(asked, trial),
    )
    return FitReport(before, after, fault, answers)


def fit_lines(report: FitReport) -> list[str]:
    """The report as text."""
    plan = report.asked
    lines = [f"{plan.name} on {plan['hardware']}, memory of one rank in GiB"]
    lines += _comparison(memory_table(report.before), memory_table(report.after) if report.after else None)
    lines += ["", *binding_lines(plan, report.fault), ""]
    rows = [["", "now", "fits up to", "all sequences full", "what stops it there"]]
    for a in report.answers:
        rows.append([f"{a.question} {a.key}", f"{a.now:,}", _number(a.fits), _number(a.full), a.beyond])
    return lines + columns(rows, "<>>><")


def fit_json(report: FitReport) -> dict[str, Any]:
    """The report as data."""
    return {
        "name": report.asked.name,
        "fits": report.fault is None,
        "before": memory_json(memory_table(report.before)),
        "after": memory_json(memory_table(report.after)) if report.after else None,
        "blocks": {"have": report.asked["kv.num_blocks"], "full": wanted_blocks(report.asked)},
        "binding": binding_lines(report.asked, report.fault),
        "answers": [
            {"question": a.question, "key": a.key, "now": a.now, "fits": a.fits, "full": a.full, "beyond": a.beyond}
            for a in report.answers
        ],
    }


def wanted_blocks(plan: Plan) -> int:
    """Blocks, block 0 included, with which every sequence can be as long as allowed at the same time."""
    return plan.integer("limits.max_num_seqs") * plan.integer("kv.blocks_per_seq") + 1


def binding_lines(plan: Plan, fault: InputError | None) -> list[str]:
    """Which limit binds, in words."""
    table = memory_table(plan)
    _, title, size = max(table.parts, key=lambda part: part[2])
    largest = f"the largest part is {title}, {write_bytes(size)}"
    have, want = plan.integer("kv.num_blocks"), wanted_blocks(plan)
    if fault:
        short = f"{write_bytes(-table.free)} short" if table.free < 0 else f"{have:,} blocks hold no longest sequence"
        return [f"Does not fit: {short}; {largest}."]
    tokens = (have - 1) * plan.integer("kv.block_size")
    if have < want:
        share = 100 * (have - 1) / (want - 1)
        return [
            f"Memory binds: {have - 1:,} blocks ({tokens:,} tokens) of the {want - 1:,} that {_sequences(plan)} need"
            f" at once ({share:.1f} %); {largest}."
        ]
    return [f"The limits bind: {_sequences(plan)} fit at once, {write_bytes(table.free)} stay free; {largest}."]


def _sequences(plan: Plan) -> str:
    return f"{plan.integer('limits.max_num_seqs'):,} sequences of {plan.integer('limits.max_model_len'):,} tokens"


def _try(spec: str, overrides: Mapping[str, str]) -> _Trial:
    try:
        plan, fault = plan_spec_unfit(spec, overrides)
    except InputError as invalid:
        return _Trial(False, False, invalid.diagnostics[0].message.partition(": ")[0])
    if fault is None:
        return _Trial(True, plan.integer("kv.num_blocks") >= wanted_blocks(plan), "")
    free = memory_table(plan).free
    reason = f"{write_bytes(-free)} of memory short" if free < 0 else "too few blocks for one longest sequence"
    return _Trial(False, False, reason)


def _largest(plan: Plan, key: str, trial: Callable[..., _Trial]) -> Answer:
    now, least = plan.integer(key), spec_fields()[key].least or 1
    fits = _search(least, now, lambda value: trial(**{key: value}).fits)
    full = _search(least, now, lambda value: trial(**{key: value}).full)
    return Answer("largest", key, now, fits, full, trial(**{key: least if fits is None else fits + 1}).reason)


def _search(least: int, now: int, good: Callable[[int], bool]) -> int | None:
    """The largest good value, searched up from ``now`` or down to ``least``; None if no value is good."""
    if good(now):
        low, high = now, now * 2
        while good(high):
            low, high = high, high * 2
    elif good(least):
        low, high = least, now
    else:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _least_ep(plan: Plan, trial: Callable[..., _Trial]) -> Answer:
    """The smallest ep of the ranks there are; if none fits, the smallest power of two of more ranks that does."""
    key, ranks = "parallel.ep", plan.integer("parallel.ranks")
    trials = {ep: trial(**{key: ep}) for ep in range(1, ranks + 1) if ranks % ep == 0}
    fits = next((ep for ep, t in trials.items() if t.fits), None)
    full = next((ep for ep, t in trials.items() if t.full), None)
    if fits is None:
        more = next((n for n in _powers(ranks) if trial(**{"parallel.dp": n, key: n}).fits), None)
        beyond = f"dp = ep = {more:,} would fit" if more else f"no ep up to {MOST_RANKS:,} fits"
    else:
        less = [t.reason for ep, t in trials.items() if ep < fits]
        beyond = less[-1] if less else ""
    return Answer("smallest", key, plan.integer(key), fits, full, beyond)


def _powers(above: int) -> list[int]:
    return [n for n in (2**i for i in range(MOST_RANKS.bit_length())) if above < n <= MOST_RANKS]


def _comparison(before: MemoryTable, after: MemoryTable | None) -> list[str]:
    def row(title: str, old: int, new: int | None) -> list[str]:
        cells = [title, f"{old / GIB:,.3f}"]
        return (
            cells if new is None else [*cells, f"{new / GIB:,.3f}", f"{(new - old) / GIB:+,.3f}" if new != old else ""]
        )

    rows = [["", "GiB"] if after is None else ["", "as written", "with --set", "change"]]
    changed = {name: size for name, _, size in after.parts} if after else {}
    rows += [row(title, size, changed.get(name) if after else None) for name, title, size in before.parts]
    rows.append(row("used", before.used, after.used if after else None))
    rows.append(row("free", before.free, after.free if after else None))
    rows.append(row("capacity", before.capacity, after.capacity if after else None))
    return columns(rows, "<" + ">" * (len(rows[0]) - 1))


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"
