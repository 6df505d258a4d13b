"""Batch invariance of the reference operators: a step runs token by token.

The libraries under torch choose a kernel, and with it the order of a sum, by the shape of what they are given. Alone, a
token's shapes follow from its position and nothing else, so that its bits cannot depend on what else is in the step or
on how its prompt was cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from deepinfer_gen.runtime.batch import ForwardBatch


def single_tokens(batch: ForwardBatch) -> Iterator[tuple[int, ForwardBatch]]:
    """Each token of ``batch`` in order, with its place and as a batch of its own; padding rows (slot 0) are left out.

    A token's history is completed by the tokens of its row before it.
    """
    depth = batch.history.shape[1]
    zero, one = batch.slot.new_zeros(1), batch.slot.new_ones(1)
    places = zip(batch.q_start.tolist(), batch.q_len.tolist(), batch.slot.tolist(), strict=True)
    for row, (start, count, slot) in enumerate(places):
        if slot == 0:
            continue
        ids = torch.cat([batch.history[row], batch.input_ids[start : start + count]])
        own = slice(row, row + 1)
        for offset in range(count):
            place = start + offset
            token = slice(place, place + 1)
            single = ForwardBatch(
                input_ids=batch.input_ids[token],
                positions=batch.positions[token],
                row_of_token=zero,
                q_start=zero,
                q_len=one,
                k_len=batch.positions[token] + 1,
                prefill_len=batch.prefill_len[own],
                slot=batch.slot[own],
                block_table=batch.block_table[own],
                history=ids[offset : offset + depth].view(1, -1),
                prefills=batch.prefills,
            )
            yield place, single
