"""Figures of a simulation, gathered from its steps, and the table that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Reason
from deepinfer_gen.runtime.simulate.actions import DECODE, PREFILL
from deepinfer_gen.runtime.simulate.cost import StepCost
from deepinfer_gen.runtime.simulate.group import End
from deepinfer_gen.runtime.simulate.rank import Frame
from deepinfer_gen.runtime.simulate.requests import ENDED, Requests
from deepinfer_gen.runtime.simulate.trace import kind_of

KINDS = ("prefill", "empty_prefill", "decode", "dummy_decode", "idle")


@dataclass(slots=True)
class Statistics:
    """An observer of all steps."""

    ranks: int
    kinds: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    rows: int = 0  # of decode steps whose sequences still took their results
    verified: int = 0
    accepted: int = 0
    emitted: int = 0
    graph_tokens: int = 0
    real_tokens: int = 0
    votes: int = 0
    attempts: int = 0
    preemptions: int = 0
    worst_gap: int = 0
    running: int = 0
    running_while_waiting: int = 0
    decodes_while_waiting: int = 0
    decodes: int = 0
    _gaps: list[int] = field(default_factory=list)

    def take(self, frames: Sequence[Frame]) -> None:
        """The frames of one step, by rank."""
        self.steps += 1
        self._gaps = self._gaps or [0] * self.ranks
        self.votes += frames[0].decision.point > 0
        self.attempts += frames[0].decision.point > 0 and frames[0].action == PREFILL
        for rank, frame in enumerate(frames):
            self.kinds[kind_of(frame)] += 1
            self.preemptions += len(frame.preempted)
            self.emitted += frame.emitted
            if frame.action == DECODE:
                self._decode(frame)
            self._gaps[rank] = self._gaps[rank] + 1 if frame.action == PREFILL and frame.decoding else 0
            self.worst_gap = max(self.worst_gap, self._gaps[rank])

    def _decode(self, frame: Frame) -> None:
        self.graph_tokens += frame.graph
        self.real_tokens += frame.total_q
        self.rows += len(frame.numbers)
        self.verified += frame.total_q
        self.accepted += sum(frame.accepted.values())
        self.decodes += 1
        self.running += frame.decoding
        if frame.waiting:
            self.decodes_while_waiting += 1
            self.running_while_waiting += frame.decoding

    @property
    def mean_running(self) -> float:
        """Running sequences of a rank's decode steps."""
        return self.running / max(1, self.decodes)

    @property
    def mean_running_while_waiting(self) -> float:
        """The same over the decode steps in which requests wait on the rank."""
        return self.running_while_waiting / max(1, self.decodes_while_waiting)


def summary_lines(
    name: str, statistics: Statistics, requests: Requests, end: End, cost: StepCost, notes: Sequence[str]
) -> list[str]:
    """The table, one figure a line."""
    ranks = f"{statistics.ranks} rank{'s' * (statistics.ranks > 1)}"
    rows = list(_rows(statistics, requests, cost))
    width = max(len(label) for label, _ in rows) + 2
    how = {"done": "all done", "steps": "as many as asked for", "failed": "failed", "waits": "the rest waits"}[end.how]
    text = f"{name}: {ranks}, {end.steps:,} steps, {how}" + (f": {end.message}" if end.message else "")
    return [text, *(f"  {label:<{width}}{value}" for label, value in rows), *(f"  {note}" for note in notes)]


def _rows(s: Statistics, requests: Requests, cost: StepCost) -> Iterator[tuple[str, str]]:
    yield "requests", _requests(requests)
    yield "steps of all ranks", ", ".join(f"{s.kinds[k]:,} {k.replace('_', ' ')}" for k in KINDS)
    yield "verified tokens a row", f"mean {s.verified / max(1, s.rows):.3f}"
    yield "accepted drafts a row", f"mean {s.accepted / max(1, s.rows):.3f}"
    padding = s.graph_tokens - s.real_tokens
    yield "padding waste", f"{padding / max(1, s.graph_tokens):.2%} of {s.graph_tokens:,} graph tokens"
    yield "votes", f"{s.votes:,}, of which {s.attempts:,} led to a prefill"
    yield "preemptions", f"{s.preemptions:,}"
    yield "worst decode gap", f"{s.worst_gap:,} steps"
    came = requests.first_chunk >= 0
    yield "worst prefill wait", _steps(requests.first_chunk[came] - requests.arrival[came], "worst")
    out = requests.first_token >= 0
    first = requests.first_token[out] - requests.arrival[out] + 1
    yield "time to first token", _steps(first, "mean", "median", "worst")
    waiting = f"{s.mean_running_while_waiting:.1f} while requests wait"
    yield "running sequences", f"mean {s.mean_running:.1f}" + (f", {waiting}" if s.decodes_while_waiting else "")
    if cost.milliseconds:
        speed = s.emitted / s.ranks / cost.milliseconds * 1000
        yield "modelled time", f"{cost.milliseconds:,.1f} ms, {speed:,.0f} tokens/s a rank"


def _requests(requests: Requests) -> str:
    counts = {r.name.lower(): requests.ended_as(r) for r in Reason}
    counts["unfinished"] = int((requests.status[1:] != ENDED).sum())
    shown = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"{len(requests.names) - 1:,}: {shown}"


def _steps(values: np.ndarray[tuple[int], np.dtype[np.int64]], *what: str) -> str:
    if not len(values):
        return "none"
    figures = {"mean": f"{values.mean():.1f}", "median": f"{np.median(values):.1f}", "worst": f"{values.max():,}"}
    if len(what) == 1:
        return f"{figures[what[0]]} steps"
    return ", ".join(f"{name} {figures[name]}" for name in what) + " steps"
