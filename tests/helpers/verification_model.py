"""Verification lengths, written from docs/scheduler.md section 8 and from nothing else: plain, exact, slow."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Config:
    """What a policy is compiled for; ``prior`` is a confidence, ``min_gain`` numerator and denominator."""

    varlen: bool
    max_num_seqs: int
    nextn: int
    prior: int
    min_gain: tuple[int, int]
    padded: bool
    sizes: tuple[int, ...]

    @property
    def max_total_q(self) -> int:
        return self.sizes[-1]

    def graph(self, total: int) -> int:
        """The smallest graph size that holds ``total`` tokens."""
        return self.sizes[bisect_left(self.sizes, total)]


@dataclass(frozen=True, slots=True)
class Row:
    """``total`` and ``split`` are confidences, nextn each; None: no history, and as ``total``."""

    cap: int
    total: Sequence[int] | None = None
    split: Sequence[int] | None = None


def survivals(confidences: Sequence[int], cap: int) -> list[int]:
    """Of the first ``cap`` drafts, in 1/65536."""
    result, survival = [], 65536
    for confidence in confidences[:cap]:
        survival = (survival * confidence) >> 16
        result.append(survival)
    return result


def split(rows: Sequence[Sequence[int]], count: int) -> list[int]:
    """How many drafts of each row are among the first ``count`` by (survival descending, position, row)."""
    drafts = [0] * len(rows)
    order = sorted((-survival, k, r) for r, row in enumerate(rows) for k, survival in enumerate(row))
    for _, _, r in order[:count]:
        drafts[r] += 1
    return drafts


class VerificationModel:
    """One policy with its estimators."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.curve: dict[int, float] = {}
        self.variable = False
        self.held: tuple[int, int, float, float] | None = None
        self.block: list[float] = []
        self.blocks: list[float] = []
        self.samplers: dict[int, list[float]] = defaultdict(list)

    def set_curve(self, milliseconds: Sequence[float]) -> None:
        self.curve = dict(zip(self.config.sizes, milliseconds, strict=True))
        self.held, self.block, self.blocks = None, [], []

    def observe(self, size: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        held, self.held = self.held, (size, rows, forward_ms, sampler_ms)
        if held is None or not self.config.varlen:
            return
        size, rows, forward_ms, sampler_ms = held
        self.block.append((forward_ms - self.curve[size]) / size)
        if len(self.block) == 50:
            self.blocks.append(median(self.block))
            self.block = []
        if rows:
            self.samplers[rows].append(sampler_ms)

    def sampler(self, rows: int) -> float:
        seen = sorted(self.samplers)
        if not seen:
            return 0.0
        nearest = max((n for n in seen if n <= rows), default=seen[0])
        return median(self.samplers[nearest][-9:])

    def cost(self, size: int, rows: int) -> float:
        slope = median(self.blocks[-100:]) if self.blocks else 0.0
        cost = (self.curve[size] + slope * size) + self.sampler(rows)
        return cost if cost > 0 else self.curve[size]

    def choose(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Drafts that each row verifies."""
        caps = [row.cap for row in rows]
        most = min(len(rows) + sum(caps), limit)
        if not rows:
            return []
        if not self.config.varlen:
            return fixed(caps, most - len(rows))
        prior = [self.config.prior] * self.config.nextn
        known = [survivals(row.total or prior, row.cap) for row in rows]
        total = self.total(known, most, limit)
        if total == len(rows) + sum(caps):
            return caps
        newest = [survivals(row.split or row.total or prior, row.cap) for row in rows]
        return split(newest, total - len(rows))

    def total(self, known: Sequence[Sequence[int]], most: int, limit: int) -> int:
        rows = len(known)
        ranked = sorted((s for row in known for s in row), reverse=True)
        rates = {}
        for total in [g for g in self.config.sizes if rows <= g < most] + [most]:
            graph = limit if self.config.padded else self.config.graph(total)
            rates[total] = (rows + sum(ranked[: total - rows]) / 65536) / self.cost(graph, rows)
        best = max(rates, key=lambda total: (rates[total], -total))
        gain = rates[best] / rates[most] - 1
        numerator, denominator = self.config.min_gain
        least = numerator / denominator
        self.variable = gain >= (least / 2 if self.variable else least)
        return best if self.variable else most

    def wish(self, rows: int) -> int:
        config = self.config
        most = rows * (config.nextn + 1)
        if not config.varlen or not rows or not self.curve:
            return config.graph(most)
        ranked = sorted(survivals([config.prior] * config.nextn, config.nextn) * rows, reverse=True)
        rates = {}
        for total in [g for g in config.sizes if rows <= g < most] + [most]:
            rates[total] = (rows + sum(ranked[: total - rows]) / 65536) / self.curve[config.graph(total)]
        best = max(rates, key=lambda total: (rates[total], -total))
        gain = rates[best] / rates[most] - 1
        return config.graph(best if gain >= config.min_gain[0] / config.min_gain[1] else most)


def fixed(caps: Sequence[int], room: int) -> list[int]:
    """All drafts; the last rows give up theirs first."""
    drafts = []
    for cap in caps:
        drafts.append(min(cap, room))
        room -= drafts[-1]
    return drafts
