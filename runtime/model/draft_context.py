"""The draft pass as a step of the model: each row is one block of tokens, seen by its queries in both directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import RegionRows
from deepinfer_gen.runtime.model.step_context import RingIndex, StepContext


@dataclass(frozen=True, slots=True)
class DraftRows:
    """R sequences to draft for, at least one, all int64 [R].

    ``token`` is the newest token, accepted or sampled but not yet run, ``position`` its place in the sequence and
    ``slot`` the state slot. Padding rows name slot 0 and position 0.
    """

    token: Tensor
    position: Tensor
    slot: Tensor


def block_batch(rows: DraftRows, block_size: int, noise_token_id: int, max_positions: int) -> ForwardBatch:
    """R rows of ``block_size`` tokens from ``position`` on: the newest token, then noise where drafts will stand.

    Draft layers have neither compressed entries nor Engram, so there are no block tables and no history. Nor is there
    a floor of a truncated prefill: the block begins behind the prompt, of which at least a window is kept.
    """
    # A sequence that ended in a step still in flight may be past the last position; nobody uses what it drafts.
    first = rows.position.clamp(max=max_positions - block_size)
    count, device = rows.token.shape[0], rows.token.device
    row, offset = torch.arange(count, device=device), torch.arange(block_size, device=device)
    ids = rows.token.new_full((count, block_size), noise_token_id)
    ids[:, 0] = rows.token
    return ForwardBatch(
        input_ids=ids.view(-1),
        positions=(first.unsqueeze(1) + offset).view(-1),
        row_of_token=row.repeat_interleave(block_size),
        q_start=row * block_size,
        q_len=torch.full_like(row, block_size),
        k_len=first + block_size,
        prefill_len=torch.zeros_like(row),
        slot=rows.slot,
        block_table=row.new_empty((count, 0)),
        history=row.new_empty((count, 0)),
        prefills=False,
    )


@dataclass(slots=True)
class DraftContext(StepContext):
    """A step over ``block_batch`` rows that writes nothing and whose window does not slide inside a block."""

    def _ring_index(self, region: RegionRows, window: int) -> RingIndex:
        # A backbone query's own row is the last of its window; a block reads a whole window before it, and itself.
        return _block_index(self.batch, region, window)


def _block_index(batch: ForwardBatch, region: RegionRows, window: int) -> RingIndex:
    """Every query of a row reads the ``window`` ring rows before the block, then the block's own rows."""
    device, count = batch.positions.device, batch.slot.shape[0]
    row, block = torch.arange(count, device=device), batch.positions.shape[0] // count
    first = batch.positions.index_select(0, batch.q_start)
    before = first.unsqueeze(1) + torch.arange(-window, 0, device=device)
    in_ring = row.unsqueeze(1) * window + torch.arange(window, device=device)
    in_block = count * window + batch.q_start.unsqueeze(1) + torch.arange(block, device=device)
    begun = before >= 0
    pool = torch.cat([torch.where(begun, in_ring, in_block[:, :1]), in_block], 1)
    valid = torch.cat([begun, torch.ones_like(in_block, dtype=torch.bool)], 1)
    nothing = row.new_empty(0)
    return RingIndex(
        ring_offsets=region.offsets(batch.slot.unsqueeze(1), before.clamp(min=0) % region.rows).view(-1),
        pool=pool.index_select(0, batch.row_of_token),
        valid=valid.index_select(0, batch.row_of_token),
        write_tokens=nothing,
        write_slot=nothing,
        write_row=nothing,
    )
