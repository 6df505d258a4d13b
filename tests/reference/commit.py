"""The results of a step, and how they end requests (docs/scheduler.md, section 9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference.records import LENGTH, STOP, Committed, Int32
from reference.requests import Frame, Row
from reference.state import State


def check_results(state: State, step_id: int, tokens: Int32, counts: Int32, confidences: NDArray[np.uint16]) -> Frame:
    """The frame that the results are of. ValueError, with nothing changed, if they are of no or of another step."""
    if not state.frames or state.frames[0].step_id != step_id:
        raise ValueError(f"commit: step {step_id} is not the oldest that is not committed")
    frame, config = state.frames[0], state.config
    rows = len(frame.rows)
    for name, array, shape in (
        ("tokens", tokens, (rows, config.max_q)),
        ("counts", counts, (rows,)),
        ("confidences", confidences, (rows, config.nextn)),
    ):
        if array.shape != shape:
            raise ValueError(f"commit: {name} has shape {array.shape}, not {shape}")
    for index, row in enumerate(frame.rows):
        count = int(counts[index])
        most = (1 + row.cap if frame.provisional else row.q_len) if frame.decode else int(row.samples)
        least = 1 if frame.decode else most
        if not least <= count <= most:
            raise ValueError(f"commit: row {index} has {count} tokens, not {least} .. {most}")
        if any(token < 0 for token in tokens[index, :count].tolist()):
            raise ValueError(f"commit: row {index} has a token below 0")
    return frame


def commit(state: State, frame: Frame, tokens: Int32, counts: Int32, confidences: NDArray[np.uint16]) -> Committed:
    """Take the oldest frame's results. Dead rows give nothing."""
    state.frames.remove(frame)
    ids, emitted, reasons = [], [], []
    for index, row in enumerate(frame.rows):
        values, count = [int(token) for token in tokens[index]], int(counts[index])
        ids.append(row.id)
        emitted.append(0)
        reasons.append(0)
        if not row.sequence.alive:
            continue
        if count > 0:
            emitted[-1], reasons[-1] = _append(state, row, values[:count])
        if row.sequence.alive and row.samples:
            _hand_over(frame, row, values[1:], confidences[index])
    return Committed(np.array(ids, np.uint64), np.array(emitted, np.int32), np.array(reasons, np.int32))


def _append(state: State, row: Row, values: list[int]) -> tuple[int, int]:
    """Tokens one by one until one ends the request: how many, and the reason (0 if it goes on)."""
    request = row.sequence.request
    for taken, token in enumerate(values, start=1):
        request.tokens.append(token)
        if token in request.end_ids and request.output_length >= request.min_tokens:
            state.end(request, STOP, token)
            return taken, STOP
        if request.length == request.limit:
            state.end(request, LENGTH)
            return taken, LENGTH
    return len(values), 0


def _hand_over(frame: Frame, row: Row, drafts: list[int], confidences: NDArray[np.uint16]) -> None:
    """What the step drafted for the next one; lost if the sequence was passed over after this row was scheduled."""
    sequence = row.sequence
    if not frame.decode:
        sequence.drafts = drafts[: next((i for i, token in enumerate(drafts) if token < 0), len(drafts))]
    if sequence.passes == row.passes and (frame.decode or sequence.drafts):
        sequence.older, sequence.newest = sequence.newest, tuple(int(value) for value in confidences)
