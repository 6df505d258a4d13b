"""The workload of a simulation: one request a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.scheduler_core import Int32
from deepinfer_gen.runtime.simulate.records import Field, Record, integer, list_of, optional, read_records, text

_MOST = np.iinfo(np.int32).max
_STEP = integer(0, _MOST)
_TOKENS = integer(1, _MOST)


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_STEP(v) for v in value)


FIELDS = (
    Field("id", text, "a name"),
    Field("rank", _STEP, "the number of a rank", 0),
    Field("arrival_step", _STEP, "a step, from 0", 0),
    Field("prompt_len", _TOKENS, "a number of tokens, from 1"),
    Field("max_tokens", _TOKENS, "a number of tokens, from 1"),
    Field("accept_rate", _is_rate, "a probability from 0 to 1", 1.0),
    Field("abort_step", optional(_STEP), "a step, or null", None),
    Field("fork_of", optional(text), "the id of another request, or null", None),
    Field("image_spans", list_of(_is_span), "a list of [start, end]", []),
    Field("checkpoints", list_of(_STEP), "a list of positions", []),
)
_SAME_AS_PARENT = ("rank", "prompt_len", "max_tokens", "image_spans", "checkpoints")


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request; ``number`` is its line among the requests, from 1, and its id in the scheduler."""

    number: int
    id: str
    rank: int
    arrival_step: int
    prompt_len: int
    max_tokens: int
    accept_rate: float
    abort_step: int | None
    parent: int  # its number, 0 for none
    image_spans: Int32
    checkpoints: Int32


def read_workload(path: Path, ranks: int) -> tuple[list[WorkloadRequest], list[Record]]:
    """The requests in the order of the file, with their lines. Raises ``InputError`` with every fault.

    Beside the faults of ``read_records``: DI385: an id comes twice, or there is no request; DI386: no such rank; DI387:
    a fork's parent is missing, is itself, or differs in a field that a fork shares; DI388: it is aborted before it
    arrives.
    """
    records = read_records(path, FIELDS, "the workload")
    if not records:
        raise InputError(Diagnostic("DI385", "the workload holds no request", str(path), help="write one a line"))
    lines: dict[str, Record] = {}
    numbers: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        lines.setdefault(record.values["id"], record)
        numbers.setdefault(record.values["id"], number)
    faults = [fault for record in records for fault in _faults(record, lines, ranks)]
    if faults:
        raise InputError(faults)
    return [_request(number, r, numbers) for number, r in enumerate(records, 1)], records


def _faults(record: Record, lines: Mapping[str, Record], ranks: int) -> Iterator[Diagnostic]:
    values = record.values
    first = lines[values["id"]]
    if first is not record:
        message = f"the id '{values['id']}' is that of line {first.line} too"
        yield record.fault("DI385", message, "id", "give every request a name of its own")
    if values["rank"] >= ranks:
        remedy = f"ranks count from 0 to {ranks - 1}; --ranks sets their number"
        yield record.fault("DI386", f"there is no rank {values['rank']} in a group of {ranks}", "rank", remedy)
    abort = values["abort_step"]
    if abort is not None and abort < values["arrival_step"]:
        message = f"abort_step {abort} is before arrival_step {values['arrival_step']}"
        yield record.fault("DI388", message, "abort_step", "a request is aborted at its arrival or later")
    if values["fork_of"] is not None:
        yield from _fork_faults(record, lines)


def _fork_faults(record: Record, lines: Mapping[str, Record]) -> Iterator[Diagnostic]:
    name = record.values["fork_of"]
    parent = lines.get(name)
    if parent is None or name == record.values["id"]:
        what = "itself" if parent else "no request of this file"
        yield record.fault("DI387", f"fork_of is '{name}', which is {what}", "fork_of", "name another line's id")
        return
    if parent.values["fork_of"] is not None and parent.line > record.line:
        message = f"fork_of is '{name}', a fork that stands below (line {parent.line})"
        yield record.fault("DI387", message, "fork_of", "a fork of a fork stands below it")
    for field in _SAME_AS_PARENT:
        if record.values[field] != parent.values[field]:
            message = f"{field} is {record.values[field]}, and {parent.values[field]} in '{name}' (line {parent.line})"
            yield record.fault("DI387", message, field, "a fork has its parent's prompt, limits and rank")


def _request(number: int, record: Record, numbers: Mapping[str, int]) -> WorkloadRequest:
    values = record.values
    return WorkloadRequest(
        number=number,
        id=values["id"],
        rank=values["rank"],
        arrival_step=values["arrival_step"],
        prompt_len=values["prompt_len"],
        max_tokens=values["max_tokens"],
        accept_rate=float(values["accept_rate"]),
        abort_step=values["abort_step"],
        parent=0 if values["fork_of"] is None else numbers[values["fork_of"]],
        image_spans=np.array(values["image_spans"], np.int32).reshape(-1, 2),
        checkpoints=np.array(values["checkpoints"], np.int32),
    )


def names_of(workload: Sequence[WorkloadRequest]) -> list[str]:
    """Ids by number; number 0 is padding."""
    return ["", *(request.id for request in workload)]
