"""The trace of a simulation: one JSON line for each step of each rank (docs/simulate.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from deepinfer_gen.runtime.scheduler_core import Reason
from deepinfer_gen.runtime.simulate.actions import DECODE, IDLE, PREFILL
from deepinfer_gen.runtime.simulate.rank import Frame

_POINTS = (None, "ALL", "ANY")
_FINGERPRINT_DIGITS = 15 + 1


class Observer(Protocol):
    """Is shown every step of the group once all its ranks have committed it."""

    def take(self, frames: Sequence[Frame]) -> None:
        """The frames of one step, by rank."""


def kind_of(frame: Frame) -> str:
    """prefill, empty_prefill, decode, dummy_decode or idle."""
    if frame.action == IDLE:
        return "idle"
    if frame.action == PREFILL:
        return "prefill" if len(frame.numbers) else "empty_prefill"
    return "decode" if len(frame.numbers) else "dummy_decode"


class TraceWriter:
    """Writes the lines of a step in the order of its ranks."""

    def __init__(self, stream: TextIO, names: Sequence[str]) -> None:
        self._stream = stream
        self._names = names

    def take(self, frames: Sequence[Frame]) -> None:
        """The frames of one step, by rank."""
        for rank, frame in enumerate(frames):
            self._stream.write(json.dumps(self._line(rank, frame)) + "\n")

    def _line(self, rank: int, frame: Frame) -> dict[str, Any]:
        point, want, go, scheduled, decode_counter = frame.decision
        return {
            "step": frame.step,
            "rank": rank,
            "kind": kind_of(frame),
            "point": _POINTS[point],
            "want": _voted(want),
            "go": _voted(go),
            "scheduled": _voted(scheduled),
            "decode_counter": decode_counter,
            "seqs": self._rows(frame),
            "total_q": frame.total_q,
            "graph": frame.graph if frame.action == DECODE else None,
            "free_blocks": frame.stats["free_blocks"],
            "free_slots": frame.stats["free_slots"],
            "accepted": frame.accepted,
            "finished": {name: Reason(reason).name.lower() for name, reason in frame.finished.items()},
            "preempted": frame.preempted,
            "fingerprint": f"{frame.fingerprint:0{_FINGERPRINT_DIGITS}x}",
        }

    def _rows(self, frame: Frame) -> list[dict[str, Any]]:
        if frame.results is None:
            return []
        columns = zip(
            frame.numbers.tolist(), frame.results.q.tolist(), frame.results.k.tolist(), frame.new, strict=True
        )
        return [{"id": self._names[n], "q": q, "k": k, "new": new} for n, q, k, new in columns]


def _voted(value: int) -> int | None:
    return value if value >= 0 else None
