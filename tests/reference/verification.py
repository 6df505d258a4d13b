"""How many drafts each row verifies (docs/scheduler.md, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.config import Config
from reference.estimators import Estimators

ONE = 1 << 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row: how many drafts it may verify, and u16 confidences for the total and for the split (None: not known).

    The newest confidences of an ``in_flight`` row, one of an uncommitted decode step, are on the device only.
    """

    cap: int
    for_total: tuple[int, ...] | None
    for_split: tuple[int, ...] | None
    in_flight: bool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens that each row verifies; ``provisional`` where the device splits the same total again."""

    q_len: list[int]
    provisional: bool


class Verification(Protocol):
    """What the decode step asks of a verification policy."""

    def choose(self, rows: Sequence[Candidate], agreed: int | None) -> Lengths: ...

    def request(self, rows: int) -> int:
        """Tokens that ``rows`` sequences ask the group's graph for."""
        ...

    def done(self) -> None:
        """The group has come to its end."""
        ...


def survivals(cap: int, confidences: Sequence[int]) -> list[int]:
    """Of drafts 1 .. cap, out of 65536: how likely a draft and all before it are accepted."""
    values, survival = [], ONE
    for confidence in confidences[:cap]:
        survival = (survival * confidence) >> 16
        values.append(survival)
    return values


def split(caps: Sequence[int], survival: Sequence[Sequence[int]], total: int) -> list[int]:
    """Tokens of each row: the drafts with the greatest survival, then the earliest, then of the first row."""
    ranked = sorted(
        (-survival[row][position], position, row) for row, cap in enumerate(caps) for position in range(cap)
    )
    q_len = [1] * len(caps)
    for _, _, row in ranked[: total - len(caps)]:
        q_len[row] += 1
    return q_len


class FixedVerification:
    """Every row verifies its cap; with an agreed graph the last rows give up what does not fit."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def choose(self, rows: Sequence[Candidate], agreed: int | None) -> Lengths:
        q_len = [1 + row.cap for row in rows]
        if agreed is not None:
            excess = sum(q_len) - agreed
            for index in reversed(range(len(rows))):
                given = max(0, min(excess, rows[index].cap))
                q_len[index] -= given
                excess -= given
        return Lengths(q_len, False)

    def request(self, rows: int) -> int:
        return rows * self.config.max_q

    def done(self) -> None:
        pass


class VarlenVerification:
    """The total from the confidences before the newest, the split from the newest."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.curve: dict[int, float] = {}  # graph size to milliseconds
        self.estimators = Estimators()
        self.variable = False

    def done(self) -> None:
        self.variable = False

    @property
    def prior(self) -> tuple[int, ...]:
        return (self.config.prior,) * self.config.nextn

    def choose(self, rows: Sequence[Candidate], agreed: int | None) -> Lengths:
        caps = [row.cap for row in rows]
        everything = len(rows) + sum(caps)
        for_total = [survivals(row.cap, row.for_total or self.prior) for row in rows]
        total = 0
        if rows:
            least_gain = self.config.min_gain / (2 if self.variable else 1)
            total, self.variable = self._total(for_total, agreed, least_gain, estimate=True)
        if total == everything:
            return Lengths([1 + cap for cap in caps], False)
        for_split = [survivals(row.cap, row.for_split or self.prior) for row in rows]
        return Lengths(split(caps, for_split, total), any(row.in_flight and row.cap for row in rows))

    def request(self, rows: int) -> int:
        """Chosen as if nothing were known but the curve and the prior. It changes nothing."""
        if not rows or not self.curve:
            return rows * self.config.max_q
        survival = [survivals(self.config.nextn, self.prior)] * rows
        return self._total(survival, None, self.config.min_gain, estimate=False)[0]

    def _total(
        self, survival: list[list[int]], agreed: int | None, least_gain: float, *, estimate: bool
    ) -> tuple[int, bool]:
        """The best total if it gains that much, else all; and whether it does."""
        everything = len(survival) + sum(map(len, survival))
        if agreed is not None:
            everything = min(everything, agreed)
        best, best_value, all_value = self._best(survival, agreed, estimate=estimate)
        gain = best_value / all_value - 1.0
        return (best, True) if gain >= least_gain else (everything, False)

    def _best(self, survival: list[list[int]], agreed: int | None, *, estimate: bool) -> tuple[int, float, float]:
        """The best total with its expected tokens per millisecond, and those of verifying everything."""
        rows = len(survival)
        ranked = sorted((value for row in survival for value in row), reverse=True)
        everything = rows + len(ranked)
        if agreed is not None:
            everything = min(everything, agreed)
        totals = [*(size for size in self.config.graph_sizes if rows <= size < everything), everything]
        values = []
        for total in totals:
            expected = rows + sum(ranked[: total - rows]) / 65536.0
            size = agreed if agreed is not None else self.config.graph_sizes[self.config.graph_index(total)]
            values.append(expected / self._cost(size, rows, estimate=estimate))
        best = values.index(max(values))  # ties: the smaller total
        return totals[best], values[best], values[-1]

    def _cost(self, size: int, rows: int, *, estimate: bool) -> float:
        """Milliseconds of a step with a graph of ``size`` tokens."""
        if not estimate:
            return self.curve[size]
        slope, sampler = self.estimators.forward.slope(), self.estimators.sampler.estimate(rows)
        cost = (self.curve[size] + slope * size) + sampler
        return cost if cost > 0 else self.curve[size]
