"""Metric values as ``LLM.get_metrics`` returns them, in the shape of vLLM's metric reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

PREFIX = "deepinfer:"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


@dataclass(frozen=True, slots=True)
class Counter:
    """A count that only grows."""

    name: str
    labels: dict[str, str]
    value: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value of this moment."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations; ``buckets`` maps each upper limit, ``+Inf`` last, to the count at or below it."""

    name: str
    labels: dict[str, str]
    count: int
    sum: float
    buckets: dict[str, int]


Metric = Counter | Gauge | Histogram


@dataclass(slots=True)
class Observations:
    """A histogram being filled."""

    limits: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.limits) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.limits, value)] += times
        self.total += value * times

    def snapshot(self, name: str, labels: dict[str, str]) -> Histogram:
        """The cumulative form."""
        running, buckets = 0, {}
        for limit, count in zip((*map(str, self.limits), "+Inf"), self.counts, strict=True):
            running += count
            buckets[limit] = running
        return Histogram(name, labels, running, self.total, buckets)
