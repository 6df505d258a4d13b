"""A fault plan: what the caller, the device or the network does besides the workload, and at which edge of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.scheduler_core import Reason
from deepinfer_gen.runtime.simulate.records import Field, Record, integer, optional, read_records, text
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

PHASES = ("begin", "vote", "attempt", "scheduled", "commit", "end")
"""Edges of a step, in order: before begin_step; before the first and the second voting round; when the step is
scheduled and its record is not yet published; before results are delivered; after them."""
OF_A_REQUEST = (
    "abort", "finish", "pause", "resume", "begin_transfer", "end_transfer", "hold_load", "end_token",
)  # fmt: skip
OF_A_RANK = ("late", "early", "error", "pending", "settled")
_EVENTS = (*OF_A_REQUEST, *OF_A_RANK)
_OF_SOME = {"reason": ("finish",), "output": ("end_token",), "message": ("error",), "rank": OF_A_RANK}
"""Fields that mean something for these events only."""
REASONS = tuple(reason.name.lower() for reason in Reason)
_MOST = np.iinfo(np.int32).max


def _one_of(values: Sequence[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


FIELDS = (
    Field("step", integer(0, _MOST), "a step, from 0", 0),
    Field("phase", _one_of(PHASES), f"one of {', '.join(PHASES)}", PHASES[0]),
    Field("event", _one_of(_EVENTS), f"one of {', '.join(_EVENTS)}"),
    Field("id", optional(text), "the id of a request", None),
    Field("rank", integer(0, _MOST), "the number of a rank", 0),
    Field("reason", _one_of(REASONS), f"one of {', '.join(REASONS)}", "stop"),
    Field("output", integer(1, _MOST), "an output token, from 1", 1),
    Field("message", text, "a sentence", "a fault of the plan"),
)


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One event; ``number`` is its request, 0 where the whole rank is meant."""

    step: int
    phase: str
    event: str
    number: int
    rank: int
    reason: Reason
    output: int
    message: str


def read_fault_plan(path: Path, workload: Sequence[WorkloadRequest], ranks: int) -> list[FaultEvent]:
    """The events in the order in which they happen. Raises ``InputError`` with every fault.

    Beside the faults of ``read_records``: DI390: an event lacks its request, or names what does not exist.
    """
    records = read_records(path, FIELDS, "the fault plan")
    by_id = {request.id: request for request in workload}
    faults = [fault for record in records for fault in _faults(record, by_id, ranks)]
    if faults:
        raise InputError(faults)
    events = [_event(record, by_id) for record in records]
    return sorted(events, key=lambda e: (e.step, PHASES.index(e.phase)))


def _faults(record: Record, by_id: dict[str, WorkloadRequest], ranks: int) -> Iterator[Diagnostic]:
    name, event = record.values["id"], record.values["event"]
    if event in OF_A_REQUEST and name is None:
        yield record.fault("DI390", f"'{event}' happens to a request, and the line has no id", "event", "write its id")
    elif event in OF_A_RANK and name is not None:
        yield record.fault("DI390", f"'{event}' happens to a rank, not to request '{name}'", "id", "write its rank")
    elif name is not None and name not in by_id:
        yield record.fault("DI390", f"the workload has no request '{name}'", "id", "name one of its ids")
    elif event == "end_token" and name is not None and by_id[name].parent:
        yield record.fault("DI390", f"'{name}' is a fork, which has its parent's end tokens", "id", "name the parent")
    for field in sorted(record.written & _OF_SOME.keys()):
        if event not in _OF_SOME[field]:
            yield record.fault("DI390", f"'{field}' says nothing about '{event}'", field, "leave it out")
    if record.values["rank"] >= ranks:
        message = f"there is no rank {record.values['rank']} in a group of {ranks}"
        yield record.fault("DI390", message, "rank", f"ranks count from 0 to {ranks - 1}")


def _event(record: Record, by_id: dict[str, WorkloadRequest]) -> FaultEvent:
    values = record.values
    request = by_id[values["id"]] if values["id"] is not None else None
    return FaultEvent(
        step=values["step"],
        phase=values["phase"],
        event=values["event"],
        number=request.number if request else 0,
        rank=request.rank if request else values["rank"],
        reason=Reason[values["reason"].upper()],
        output=values["output"],
        message=values["message"],
    )
