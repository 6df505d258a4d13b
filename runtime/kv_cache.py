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
from deepinfer_gen.runtime.plan_types import Region, Scales

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScaleRows:
    """The scales of a region whose rows keep them apart from their data; views like those of ``RegionRows``."""

    grid: Tensor
    flat: Tensor
    row_stride: int


@dataclass(frozen=True, slots=True)
class RegionRows:
    """The rows of one region in every unit (block or slot).

    ``grid`` [units, rows, elements] is for writing. ``flat`` [n, elements] starts a row at every element of the
    buffer, so that one ``index_select`` reads any rows whatever the unit's size; ``offsets`` gives its indices. Where
    data and scales lie apart, these are the data, and ``scales`` the rest of each row. Outside of this class a row is
    always whole: what its codec encodes.
    """

    codec: CacheCodec
    grid: Tensor
    flat: Tensor
    unit_stride: int
    row_stride: int
    scales: ScaleRows | None = None

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
        decoded = self.codec.decode(self.stored(offsets.reshape(-1)))
        return decoded.view(*offsets.shape, decoded.shape[1])

    def read_with(self, offsets: Tensor, stored: Tensor) -> Tensor:
        """Decoded rows at ``offsets`` [N] followed by the encoded rows ``stored`` [T, elements]: [N + T, dims]."""
        count = offsets.shape[0]
        pool = stored.new_empty((count + stored.shape[0], stored.shape[1]))
        self.stored(offsets, out=pool[:count])
        pool[count:] = stored
        return self.codec.decode(pool)

    def stored(self, offsets: Tensor, out: Tensor | None = None) -> Tensor:
        """The encoded rows [N, elements] at ``offsets`` [N], in ``out`` if given."""
        if self.scales is None:
            return torch.index_select(self.flat, 0, offsets, out=out)
        data, scales = self.flat.shape[1], self.scales
        # Only here is a row number needed again: the scales' rows have another stride in the same units.
        row = offsets % self.unit_stride // self.row_stride
        places = offsets - row * (self.row_stride - scales.row_stride)
        if out is None:
            out = self.flat.new_empty((offsets.shape[0], data + scales.flat.shape[1]))
        out[:, :data] = self.flat.index_select(0, offsets)
        out[:, data:] = scales.flat.index_select(0, places)
        return out

    def parts(self, stored: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Where encoded rows [N, elements] go: grids [units, rows, n], each with the columns [N, n] that it holds."""
        data = self.grid.shape[2]
        yield self.grid, stored[:, :data]
        if self.scales is not None:
            yield self.scales.grid, stored[:, data:]


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
            scales = Scales(**entry["scales"]) if "scales" in entry else None
            yield Region(entry["offset"], entry["rows"], entry["row_bytes"], entry["format"], scales)


def _rows(buffer: Tensor, region: Region) -> RegionRows:
    codec = codec_of(region.format)
    _check_scales(region, codec)
    size, parts = codec.storage.itemsize, region.scales
    misaligned = [n for n in (buffer.shape[1], region.offset, region.row_bytes) if n % size]
    if misaligned:
        raise ValueError(f"{region}: {misaligned} bytes are not a multiple of the {size}-byte elements of its format")
    elements = buffer.view(-1).view(codec.storage)
    unit = buffer.shape[1] // size

    def views(offset: int, stride: int, width: int) -> tuple[Tensor, Tensor]:
        """Grid and flat view of ``width`` elements for each row."""
        grid = elements.as_strided((buffer.shape[0], region.rows, width), (unit, stride, 1), offset)
        return grid, elements.as_strided((elements.numel() - offset - width + 1, width), (1, 1), offset)

    if parts is None or (parts.offset == region.offset + parts.data_bytes and parts.stride == parts.data_stride):
        # Data and scales of a row are neighbours: a record is one run of bytes.
        stride = (region.row_bytes if parts is None else parts.data_stride) // size
        grid, flat = views(region.offset // size, stride, region.row_bytes // size)
        return RegionRows(codec, grid, flat, unit, stride)
    apart = ScaleRows(*views(parts.offset, parts.stride, parts.bytes), row_stride=parts.stride)
    grid, flat = views(region.offset, parts.data_stride, parts.data_bytes)
    return RegionRows(codec, grid, flat, unit, parts.data_stride, apart)


def _check_scales(region: Region, codec: CacheCodec) -> None:
    """Data and scales must be a record in the proportion of the format, and absent where it has no scales."""
    per_scale, parts = codec.data_bytes_per_scale, region.scales
    scale_bytes, data_bytes = (0, 0) if parts is None else (parts.bytes, parts.data_bytes)
    fits = scale_bytes * per_scale == data_bytes and bool(per_scale) == bool(scale_bytes)
    if fits and (parts is None or data_bytes + scale_bytes == region.row_bytes):
        return
    expected = f"{per_scale} bytes of data for one of scale" if per_scale else "no scales"
    raise InputError(
        Diagnostic(
            "DI395",
            f"a row of format '{region.format}' has {expected}; the region at {region.offset} has {data_bytes} bytes of"
            f" data and {scale_bytes} of scales in rows of {region.row_bytes}",
            file="layout.json",
            help="generate the engine again",
        )
    )
