"""The arrays of a scheduled step, with the padding of its graph (docs/formats.md, section 3)."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from reference.records import Int32, Step, UInt64
from reference.requests import Row
from reference.state import State


def _ids(values: Items[int]) -> UInt64:
    return np.array(values, np.uint64)


def _ints(values: Items[int]) -> Int32:
    return np.array(values, np.int32)


def _pairs(values: Items[tuple[int, int]]) -> Int32:
    return np.array(values, np.int32).reshape(-1, 2)


def make_step(
    state: State, *, step_id: int, kind: int, rows: list[Row], graph_index: int | None = None, provisional: bool = False
) -> Step:
    """``kind`` 0 none, 1 prefill, 2 decode; ``graph_index`` of a decode step's graph."""
    config = state.config
    total_q = sum(row.q_len for row in rows)
    graph = 0 if graph_index is None else config.graph_sizes[graph_index]
    row_count = len(rows) if graph_index is None else config.graph_rows[graph_index]
    padding = _padding_rows(max(0, graph - total_q), config.max_q, row_count - len(rows))
    q_len = [row.q_len for row in rows] + padding
    starts = [row.start for row in rows] + [0] * len(padding)
    block_table = np.zeros((row_count, config.blocks_per_seq), np.int32)
    history = np.full((row_count, config.history), -1, np.int32)
    input_ids: list[int] = []
    for index, row in enumerate(rows):
        block_table[index, : len(row.sequence.blocks)] = row.sequence.blocks
        history[index] = [_known(row, p, -1) for p in range(row.start - config.history, row.start)]
        input_ids += [_input(row, position) for position in range(row.start, row.start + row.q_len)]

    def of_rows(values: list[int], pad: int = 0) -> list[int]:
        return values + [pad] * len(padding)

    ignored, state.ignored = state.ignored, []
    return Step(
        step_id=step_id,
        kind=kind,
        num_rows=len(rows),
        total_q=total_q,
        graph=graph,
        provisional=int(provisional),
        ids=_ids(of_rows([row.id for row in rows])),
        q_len=_ints(q_len),
        k_len=_ints([start + q for start, q in zip(starts, q_len, strict=True)]),
        prefill_len=_ints(of_rows([row.sequence.prefill_length for row in rows])),
        slot=_ints(of_rows([row.sequence.slot for row in rows])),
        remap=_ints(of_rows([row.remap for row in rows], -1)),
        samples=_ints(of_rows([int(row.samples) for row in rows])),
        caps=_ints([row.cap for row in rows]),
        block_table=block_table,
        history=history,
        input_ids=_ints(input_ids + [0] * sum(padding)),
        positions=_ints([start + i for start, q in zip(starts, q_len, strict=True) for i in range(q)]),
        row_of_token=_ints([index for index, q in enumerate(q_len) for _ in range(q)]),
        clone_blocks=_pairs(state.clone_blocks),
        clone_states=_pairs(state.clone_states),
        zero_states=_ints(state.zero_states),
        ignored=_ids(ignored),
        preempted=_ids(state.preempted),
        loads=_ids(state.loads),
    )


def _padding_rows(tokens: int, max_q: int, rows: int) -> list[int]:
    """Padding tokens in groups of at most ``max_q``, then rows without any."""
    grouped = [min(max_q, tokens - first) for first in range(0, tokens, max_q)]
    return grouped + [0] * (rows - len(grouped))


def _known(row: Row, position: int, unknown: int) -> int:
    """The committed token at ``position``; −1 before the sequence, ``unknown`` beyond what is committed."""
    tokens = row.sequence.request.tokens
    if position < 0:
        return -1
    return tokens[position] if position < len(tokens) else unknown


def _input(row: Row, position: int) -> int:
    """A committed token; the draft of a prefill step in the first decode step; 0 for what the device gathers."""
    sequence = row.sequence
    draft = position - sequence.request.length
    if draft >= 0 and row.remap < 0:
        return sequence.drafts[draft]
    return _known(row, position, 0)
