"""The caches as the layout maps them: KV blocks and state slots, each one buffer of bytes, with typed row views.

Nothing is kept beside these bytes: what attention reads is what was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.cache_codec import CacheCodec, codec_of
from deepinfer_gen.runtime.plan_types import Region

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RegionRows:
    """The rows of one region in every unit (block or slot).

    ``grid`` [units, rows, elements] is for writing. ``flat`` [n, elements] starts a row at every element of the
    buffer, so that one ``index_select`` reads any rows whatever the unit's size; ``offsets`` gives its indices.
    """

    codec: CacheCodec
    grid: Tensor
    flat: Tensor
    unit_stride: int
    row_stride: int

    @property
    def rows(self) -> int:
        """Rows per unit: the ring length of a state region, the entries per block of a KV region."""
        return self.grid.shape[1]

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Regions of equal geometry share row indices, wherever they lie in the unit."""
        return self.rows, self.unit_stride, self.row_stride

    def offsets(self, unit: Tensor, row: Tensor) -> Tensor:
        """Indices into ``flat`` of row ``row`` of unit ``unit``; int64, broadcast."""
        return unit * self.unit_stride + row * self.row_stride

    def read(self, offsets: Tensor) -> Tensor:
        """Decoded float32 rows [*offsets.shape, dims]."""
        decoded = self.codec.decode(self.flat.index_select(0, offsets.reshape(-1)))
        return decoded.view(*offsets.shape, decoded.shape[1])

    def read_with(self, offsets: Tensor, stored: Tensor) -> Tensor:
        """Decoded rows at ``offsets`` [N] followed by the encoded rows ``stored`` [T, elements]: [N + T, dims]."""
        count = offsets.shape[0]
        pool = stored.new_empty((count + stored.shape[0], stored.shape[1]))
        torch.index_select(self.flat, 0, offsets, out=pool[:count])
        pool[count:] = stored
        return self.codec.decode(pool)


class KVCache:
    """Blocks [count, bytes] and slots [count, bytes] of uint8, zeroed; block 0 and slot 0 belong to padding rows."""

    def __init__(self, layout: Mapping[str, Any], device: torch.device) -> None:
        """Allocate what ``layout`` (the content of layout.json) describes."""
        block, state = layout["block"], layout["state"]
        self.blocks = torch.zeros((block["count"], block["bytes"]), dtype=torch.uint8, device=device)
        self.slots = torch.zeros((state["count"], state["slot_bytes"]), dtype=torch.uint8, device=device)
        self._block_regions = set(_regions(part for r in block["regions"] for part in (r["main"], r["index"])))
        self._state_regions = set(_regions(state["regions"]))
        self._views: dict[tuple[bool, Region], RegionRows] = {}

    def block_rows(self, region: Region) -> RegionRows:
        """Compressed rows of a KV source: entry j of a sequence is row ``j % rows`` of ``block_table[j // rows]``."""
        return self._view(self.blocks, self._block_regions, region, is_block=True)

    def slot_rows(self, region: Region) -> RegionRows:
        """A ring in the state slot: position p is row ``p % rows``."""
        return self._view(self.slots, self._state_regions, region, is_block=False)

    def clone_blocks(self, pairs: Tensor) -> None:
        """Copy whole blocks; ``pairs`` int64 [n, 2] holds (source, destination)."""
        self.blocks.index_copy_(0, pairs[:, 1], self.blocks.index_select(0, pairs[:, 0]))

    def clone_states(self, pairs: Tensor) -> None:
        """Copy whole slots; ``pairs`` int64 [n, 2] holds (source, destination)."""
        self.slots.index_copy_(0, pairs[:, 1], self.slots.index_select(0, pairs[:, 0]))

    def zero_states(self, slots: Tensor) -> None:
        """Clear slots int64 [n] before their first use by a sequence."""
        self.slots.index_fill_(0, slots, 0)

    def _view(self, buffer: Tensor, known: set[Region], region: Region, *, is_block: bool) -> RegionRows:
        key = (is_block, region)
        if key not in self._views:
            if region not in known:
                raise InputError(
                    Diagnostic(
                        "DI341",
                        f"model_plan.py names the cache region {region}, which layout.json does not have",
                        file="layout.json",
                        help="generate the engine again: the two files come from different plans",
                    )
                )
            self._views[key] = _rows(buffer, region)
        return self._views[key]


def _regions(entries: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]]) -> Iterator[Region]:
    """The regions that hold rows; a region of 0 bytes is listed in the layout but has none."""
    for entry in entries:
        if entry["rows"] and entry["row_bytes"]:
            yield Region(entry["offset"], entry["rows"], entry["row_bytes"], entry["format"])


def _rows(buffer: Tensor, region: Region) -> RegionRows:
    codec = codec_of(region.format)
    size = codec.storage.itemsize
    misaligned = [n for n in (buffer.shape[1], region.offset, region.row_bytes) if n % size]
    if misaligned:
        raise ValueError(f"{region}: {misaligned} bytes are not a multiple of the {size}-byte elements of its format")
    elements = buffer.view(-1).view(codec.storage)
    unit, width, start = buffer.shape[1] // size, region.row_bytes // size, region.offset // size
    return RegionRows(
        codec=codec,
        grid=elements.as_strided((buffer.shape[0], region.rows, width), (unit, width, 1), start),
        flat=elements.as_strided((elements.numel() - start - width + 1, width), (1, 1), start),
        unit_stride=unit,
        row_stride=width,
    )
