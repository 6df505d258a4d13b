"""Modelled time: what a step takes by the cost curve, told to the schedulers as if it had been measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepinfer_gen.runtime.simulate.actions import DECODE, IDLE
from deepinfer_gen.runtime.simulate.rank import Frame, Rank


class StepCost:
    """The time that a group has taken, ``milliseconds`` so far.

    ``curve`` has the milliseconds of a decode step for each of the graph ``sizes``; both are empty where nothing
    decodes. ``decides`` says whether the schedulers choose verification lengths by it. A prefill step takes what the
    line through the curve's ends gives for its tokens. A group is as slow as its slowest rank.
    """

    def __init__(self, curve: Sequence[float], sizes: Sequence[int], *, decides: bool) -> None:
        self._curve = tuple(curve)
        self._decides = decides
        self.milliseconds = 0.0
        self._of_graph = dict(zip(sizes, curve, strict=True))
        self._slope = (curve[-1] - curve[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.0
        self._base = curve[0] - self._slope * sizes[0] if sizes else 0.0

    def announce(self, ranks: Sequence[Rank]) -> None:
        """Give the curve to schedulers that decide by it."""
        if self._decides:
            for rank in ranks:
                rank.scheduler.set_cost_curve(np.array(self._curve, np.float64))

    def charge(self, ranks: Sequence[Rank], frames: Sequence[Frame]) -> None:
        """Add the time of one step of the group."""
        if not self._curve or frames[0].action == IDLE:
            return
        durations = [self._duration(frame) for frame in frames]
        self.milliseconds += max(durations)
        if self._decides and frames[0].action == DECODE:
            for rank, frame, duration in zip(ranks, frames, durations, strict=True):
                rank.scheduler.observe(frame.graph, len(frame.numbers), duration, 0.0)

    def _duration(self, frame: Frame) -> float:
        if frame.action == DECODE:
            return self._of_graph[frame.graph]
        return self._base + self._slope * frame.total_q
