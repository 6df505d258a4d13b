"""Online estimates of what a decode step costs, from the steps that ran."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from statistics import median

BLOCK, BLOCKS, SAMPLES = 50, 100, 9


class ForwardRuntimeEstimator:
    """Milliseconds per token that the forward pass takes beyond the cost curve.

    The last 5000 observations as 100 blocks of 50: the median of the blocks' medians, 0 before the first full block.
    """

    def __init__(self) -> None:
        self.block: list[float] = []
        self.medians: deque[float] = deque(maxlen=BLOCKS)

    def add(self, per_token: float) -> None:
        self.block.append(per_token)
        if len(self.block) == BLOCK:
            self.medians.append(median(self.block))
            self.block = []

    def slope(self) -> float:
        return median(self.medians) if self.medians else 0.0


class SamplerRuntimeEstimator:
    """Milliseconds of the sampler for a number of rows: the median of the last 9 steps of as many rows.

    A dummy step says nothing of the sampler.
    """

    def __init__(self) -> None:
        self.seen: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLES))

    def add(self, rows: int, milliseconds: float) -> None:
        if rows > 0:
            self.seen[rows].append(milliseconds)

    def estimate(self, rows: int) -> float:
        """Of the nearest number of rows that was seen: this one, else a smaller, else a larger one; else 0."""
        nearest = max((n for n in self.seen if n <= rows), default=None)
        if nearest is None:
            nearest = min(self.seen, default=None)
        return median(self.seen[nearest]) if nearest is not None else 0.0


class Estimators:
    """Both, with the latest observation held back: a step's cost decides two steps later."""

    def __init__(self) -> None:
        self.forward, self.sampler = ForwardRuntimeEstimator(), SamplerRuntimeEstimator()
        self.held: tuple[int, int, float, float] | None = None

    def observe(self, curve: Mapping[int, float], graph: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        """``curve``: graph size to milliseconds."""
        if self.held is not None:
            held_graph, held_rows, held_forward, held_sampler = self.held
            self.forward.add((held_forward - curve[held_graph]) / held_graph)
            self.sampler.add(held_rows, held_sampler)
        self.held = graph, rows, forward_ms, sampler_ms


def monotone(values: Iterable[float]) -> bool:
    """Whether no value is below the one before it."""
    items = list(values)
    return all(a <= b for a, b in itertools.pairwise(items))
