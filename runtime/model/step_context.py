"""What the layers of one forward pass share: index tensors derived once from the batch, and published selections.

A context lives for one step, so that no layer can inherit another step's selections; each is keyed by the layer that
published it. The candidates are those of the model's one candidate source. ``features`` are what the drafter's target
layers saw, in layer order. Where a prefill is truncated, the layers from the cut on have a context of their own, over
the rows that are live there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.reference.sparse_attention import EntryRows
from deepinfer_gen.runtime.kv_cache import KVCache, RegionRows
from deepinfer_gen.runtime.model.step_counts import StepCounts
from deepinfer_gen.runtime.model.truncation import LiveRows


@dataclass(frozen=True, slots=True)
class RingIndex:
    """Reading the window of each query of a ring, wherever its rows lie, and writing the step's own rows.

    The candidate rows are a pool: the ``depth`` = window - 1 ring rows before each batch row's first query, then the T
    rows of this step. ``ring_offsets`` [R * depth] reads the first part; ``pool`` [T, window] finds a query's rows in
    it, oldest first and its own last; ``valid`` [T, window] is false before the sequence starts and below the floor of
    a truncated prefill, where ``pool`` points at the query's own row. ``write_tokens`` [N] are the tokens to store at
    ``write_slot``, ``write_row``: only the last ``rows`` of each batch row survive in the ring.
    """

    ring_offsets: Tensor
    pool: Tensor
    valid: Tensor
    write_tokens: Tensor
    write_slot: Tensor
    write_row: Tensor


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """Compressed entries of one ratio: ``visible`` [T] per query, and those that this step completes.

    ``tokens`` [C] complete an entry, ``positions`` [C] is where the entry begins, ``block`` and ``row`` [C] where it is
    stored; ``width`` is the largest number visible to any query, at least 1.
    """

    visible: Tensor
    width: int
    tokens: Tensor
    positions: Tensor
    block: Tensor
    row: Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries chosen for each query, ascending, -1 padded [T, S], and where they are stored."""

    entries: Tensor
    valid: Tensor
    block: Tensor
    row: Tensor
    located: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def rows(self, region: RegionRows) -> EntryRows:
        """The chosen rows of ``region``; layers that share a source share the offsets."""
        if region.geometry not in self.located:
            self.located[region.geometry] = region.offsets(self.block, self.row)
        return EntryRows(region, self.located[region.geometry], self.valid)

    def of(self, live: LiveRows) -> Selection:
        """The selection of the live rows."""
        select = live.select
        return Selection(select(self.entries), select(self.valid), select(self.block), select(self.row))


@dataclass(slots=True)
class StepContext:
    """One forward pass: batch, caches, rotary tables, and memoised index tensors.

    ``live`` says which of the step's rows ``batch`` holds; None where it holds all and no window has a floor.
    ``completed`` are the KV sources that have stored their entries of this step, ``counts`` is what the step did.
    """

    batch: ForwardBatch
    cache: KVCache
    rotary: Mapping[str, Tensor]
    ngrams: Tensor | None = None
    live: LiveRows | None = None
    completed: set[int] = field(default_factory=set)
    counts: StepCounts = field(default_factory=StepCounts)
    selections: dict[int, Selection] = field(default_factory=dict)
    candidates: Tensor | None = None
    features: list[Tensor] = field(default_factory=list)
    _block_tables: Tensor | None = None
    _rotations: dict[str, Tensor] = field(default_factory=dict)
    _inverses: dict[str, Tensor] = field(default_factory=dict)
    _rings: dict[tuple[int, tuple[int, int, int]], RingIndex] = field(default_factory=dict)
    _entries: dict[tuple[int, int], EntryIndex] = field(default_factory=dict)

    def truncated(self, live: LiveRows) -> StepContext:
        """The context of the layers from the cut on: the same step for its ``live`` rows.

        Selections, candidates and target features from before the cut are carried over.
        """
        return StepContext(
            live.batch,
            self.cache,
            self.rotary,
            live=live,
            completed=self.completed,
            counts=self.counts,
            selections={layer: selection.of(live) for layer, selection in self.selections.items()},
            candidates=None if self.candidates is None else live.select(self.candidates),
            features=[live.select(feature) for feature in self.features],
        )

    @property
    def block_tables(self) -> Tensor:
        """Block table of each token's row, int64 [T, blocks per sequence]."""
        if self._block_tables is None:
            self._block_tables = self.batch.block_table.index_select(0, self.batch.row_of_token)
        return self._block_tables

    def rotation(self, rope: str) -> Tensor:
        """complex64 [T, dims / 2] at the positions of the tokens."""
        if rope not in self._rotations:
            self._rotations[rope] = self.rotary[rope].index_select(0, self.batch.positions)
        return self._rotations[rope]

    def inverse_rotation(self, rope: str) -> Tensor:
        """The conjugate rotation at the positions of the tokens."""
        if rope not in self._inverses:
            self._inverses[rope] = self.rotation(rope).conj().resolve_conj()
        return self._inverses[rope]

    def ring(self, region: RegionRows, window: int) -> RingIndex:
        """Index tensors of a ring whose queries read ``window`` rows, the last of which is their own."""
        key = (window, region.geometry)
        if key not in self._rings:
            self._rings[key] = self._ring_index(region, window)
        return self._rings[key]

    def entries(self, region: RegionRows, ratio: int) -> EntryIndex:
        """Index tensors of the compressed entries of ``ratio`` stored in blocks like ``region``."""
        key = (ratio, region.rows)
        if key not in self._entries:
            self._entries[key] = _entry_index(self.batch, self.block_tables, region, ratio)
        return self._entries[key]

    def _ring_index(self, region: RegionRows, window: int) -> RingIndex:
        return _causal_index(self.batch, region, window, None if self.live is None else self.live.floor)

    def publish(self, layer: int, region: RegionRows, entries: Tensor) -> None:
        """Make the entries [T, S] (-1 padded) chosen by ``layer`` available; ``region`` gives the rows per block."""
        known = entries.clamp(min=0)
        block = self.block_tables.gather(1, known // region.rows)
        self.selections[layer] = Selection(entries, entries >= 0, block, known % region.rows)


def _causal_index(batch: ForwardBatch, region: RegionRows, window: int, floor: Tensor | None) -> RingIndex:
    device, depth = batch.positions.device, window - 1
    token = torch.arange(batch.positions.shape[0], device=device)
    # The pool rows of a batch row without tokens are read and never used.
    first = batch.k_len - batch.q_len
    back = torch.arange(-depth, 0, device=device)
    old = (first.unsqueeze(1) + back).clamp(min=0)
    ring_offsets = region.offsets(batch.slot.unsqueeze(1), old % region.rows).view(-1)

    row = batch.row_of_token
    place = (token - batch.q_start.index_select(0, row)).unsqueeze(1) + torch.arange(-depth, 1, device=device)
    in_ring = row.unsqueeze(1) * depth + place + depth
    in_step = batch.slot.shape[0] * depth + batch.q_start.index_select(0, row).unsqueeze(1) + place
    seen = batch.positions.unsqueeze(1) + torch.arange(-depth, 1, device=device)
    valid = seen >= (0 if floor is None else floor.index_select(0, row).unsqueeze(1))

    after = (batch.q_start + batch.q_len).index_select(0, row) - token
    write = torch.nonzero(after <= region.rows).view(-1)
    return RingIndex(
        ring_offsets=ring_offsets,
        pool=torch.where(valid, torch.where(place < 0, in_ring, in_step), in_step[:, -1:]),
        valid=valid,
        write_tokens=write,
        write_slot=batch.slot.index_select(0, row.index_select(0, write)),
        write_row=batch.positions.index_select(0, write) % region.rows,
    )


def _entry_index(batch: ForwardBatch, block_tables: Tensor, region: RegionRows, ratio: int) -> EntryIndex:
    visible = (batch.positions + 1) // ratio
    tokens = torch.nonzero((batch.positions + 1) % ratio == 0).view(-1)
    entry = batch.positions.index_select(0, tokens) // ratio
    block = block_tables.index_select(0, tokens).gather(1, (entry // region.rows).unsqueeze(1)).squeeze(1)
    return EntryIndex(
        visible=visible,
        width=max(1, int(visible.max())) if visible.numel() else 1,
        tokens=tokens,
        positions=entry * ratio,
        block=block,
        row=entry % region.rows,
    )
