"""Batches as a scheduler's steps lay them out, from rows of sequences whose ids are all known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from deepinfer_gen.runtime.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class Row:
    """The next ``count`` tokens of a sequence of ``ids``, ``start`` of which have been run.

    Its cache is ``slot`` and the blocks of ``table``; its prefill computes ``prefill`` tokens, by default all ``ids``.
    """

    ids: Sequence[int]
    start: int
    count: int
    slot: int = 0
    table: Sequence[int] = ()
    prefill: int | None = None


def padding_row(count: int) -> Row:
    """A padding row: a sequence of zeros that starts now, in slot 0 and block 0."""
    return Row([0] * count, 0, count, prefill=0)


def batch_of(rows: Sequence[Row], *, history: int = 3, blocks: int = 1) -> ForwardBatch:
    """One step of ``rows`` with ``history`` ids before each, and block tables of at least ``blocks`` entries."""
    width = max([blocks, *(len(row.table) for row in rows)])
    counts = [row.count for row in rows]
    step = SimpleNamespace(
        input_ids=np.array([i for row in rows for i in row.ids[row.start : row.start + row.count]], np.int32),
        positions=np.array([row.start + i for row in rows for i in range(row.count)], np.int32),
        row_of_token=np.repeat(np.arange(len(rows), dtype=np.int32), counts),
        q_len=np.array(counts, np.int32),
        k_len=np.array([row.start + row.count for row in rows], np.int32),
        prefill_len=np.array([len(row.ids) if row.prefill is None else row.prefill for row in rows], np.int32),
        slot=np.array([row.slot for row in rows], np.int32),
        block_table=np.array([[*row.table, *[0] * (width - len(row.table))] for row in rows], np.int32),
        history=np.array([[-1] * max(0, history - row.start) + list(row.ids[max(0, row.start - history) : row.start])
                          for row in rows], np.int32),
    )  # fmt: skip
    step.block_table, step.history = step.block_table.reshape(-1, width), step.history.reshape(len(rows), history)
    return ForwardBatch.from_step(step, torch.device("cpu"))
