"""Rows in the bytes of blocks and slots: where the layout puts them, and that what is read is what was stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.cache_codec import codec_of
from deepinfer_gen.runtime.kernels.reference.kv_scatter import kv_scatter
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.plan_types import Region, Scales

UNITS, UNIT_BYTES, DIMS = 5, 4096, 64
FORMATS = {"mxfp8_g32": (64, 2), "nvfp4_g16": (32, 4), "mxfp4_g32": (32, 2), "bf16": (128, 0), "fp32": (256, 0)}
"""Bytes of data and of scales of a row of 64 values."""


def region_of(name: str, layout: str, *, rows: int = 7, offset: int = 96) -> Region:
    data, size = FORMATS[name]
    if not size:
        return Region(offset, rows, data, name)
    if layout == "split":
        return Region(offset, rows, data + size, name, Scales(offset + rows * data, size, size, data, data))
    return Region(offset, rows, data + size, name, Scales(offset + data, size, data + size, data, data + size))


def cache_of(region: Region) -> KVCache:
    entry: dict[str, Any] = {
        "name": "swa.0", "offset": region.offset, "rows": region.rows, "row_bytes": region.row_bytes,
        "format": region.format,
    }  # fmt: skip
    if region.scales is not None:
        names = ("offset", "bytes", "stride", "data_bytes", "data_stride")
        entry["scales"] = {name: getattr(region.scales, name) for name in names}
    layout = {
        "block": {"count": 1, "bytes": 256, "regions": []},
        "state": {"count": UNITS, "slot_bytes": UNIT_BYTES, "regions": [entry]},
    }
    return KVCache(layout, torch.device("cpu"))


def record_at(cache: KVCache, region: Region, unit: int, row: int) -> bytes:
    """The record of a row, byte by byte from the positions that the region names."""
    held, parts = cache.slots[unit].tolist(), region.scales
    if parts is None:
        begin = region.offset + row * region.row_bytes
        return bytes(held[begin : begin + region.row_bytes])
    data, scale = region.offset + row * parts.data_stride, parts.offset + row * parts.stride
    return bytes(held[data : data + parts.data_bytes] + held[scale : scale + parts.bytes])


every_format = pytest.mark.parametrize("name", FORMATS)
every_layout = pytest.mark.parametrize("layout", ["interleaved", "split"])


@every_format
@every_layout
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 30), tile=st.integers(1, 8))
def test_rows_lie_where_the_region_says(name: str, layout: str, seed: int, count: int, tile: int) -> None:
    """Random rows at random places: the bytes there, nothing elsewhere, and the same values read back in any order."""
    generator = torch.Generator().manual_seed(seed)
    region = region_of(name, layout)
    cache = cache_of(region)
    rows = cache.slot_rows(region)
    place = torch.randperm(UNITS * region.rows, generator=generator)[:count]
    unit, row = place // region.rows, place % region.rows
    values = torch.randn(len(place), DIMS, generator=generator) * 10
    stored = rows.codec.encode(values)
    kv_scatter(rows, unit, row, stored, rows=tile)
    written = {(int(u), int(r)): stored[n] for n, (u, r) in enumerate(zip(unit, row, strict=True))}
    empty = bytes(region.row_bytes)
    total = 0
    for u in range(UNITS):
        for r in range(region.rows):
            record = written.get((u, r))
            expected = empty if record is None else record.contiguous().view(torch.uint8).numpy().tobytes()
            assert record_at(cache, region, u, r) == expected
            total += sum(expected)
    assert int(cache.slots.sum(dtype=torch.int64)) == total, "no other byte was touched"
    order = torch.randperm(len(place), generator=generator)
    offsets = rows.offsets(unit, row)[order]
    assert torch.equal(rows.read(offsets), codec_of(name).decode(stored[order]))
    assert torch.equal(rows.read(offsets.view(-1, 1)), rows.read(offsets).unsqueeze(1))


@every_format
@every_layout
def test_a_step_reads_its_own_rows_as_they_are_stored(name: str, layout: str) -> None:
    """Before they reach the ring, too: old rows and new ones in one pool, both decoded from their records."""
    region = region_of(name, layout)
    cache = cache_of(region)
    rows = cache.slot_rows(region)
    old, new = torch.randn(3, DIMS), torch.randn(4, DIMS)
    unit, row = torch.tensor([1, 4, 2]), torch.tensor([6, 0, 3])
    kv_scatter(rows, unit, row, rows.codec.encode(old), rows=4)
    stored = rows.codec.encode(new)
    pool = rows.read_with(rows.offsets(unit, row), stored)
    codec = codec_of(name)
    assert torch.equal(pool[:3], codec.decode(codec.encode(old)))
    assert torch.equal(pool[3:], codec.decode(codec.encode(new)))
    if name != "fp32":
        assert not torch.equal(pool[3:], new), "what is read is the rounded row"
    later = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 1, 2, 3])
    kv_scatter(rows, *later, stored, rows=4)
    assert torch.equal(rows.read(rows.offsets(*later)), pool[3:])


def test_equal_regions_of_blocks_and_slots_are_apart() -> None:
    """A ring of 16 and the 16 entries of a block may have the same place, rows and format."""
    region = Region(0, 16, 64, "fp32")
    entry = {"offset": 0, "rows": 16, "row_bytes": 64, "format": "fp32"}
    layout = {
        "block": {"count": 3, "bytes": 2048, "regions": [{"main": entry, "index": entry | {"offset": 1024}}]},
        "state": {"count": 2, "slot_bytes": 1024, "regions": [entry]},
    }
    cache = KVCache(layout, torch.device("cpu"))
    ring, entries = cache.slot_rows(region), cache.block_rows(region)
    kv_scatter(ring, torch.tensor([1]), torch.tensor([2]), torch.ones(1, 16), rows=4)
    kv_scatter(entries, torch.tensor([2]), torch.tensor([3]), torch.full((1, 16), 2.0), rows=4)
    assert cache.slots.view(torch.float32).nonzero().unique(dim=0)[:, 0].tolist() == [1] * 16
    assert cache.blocks.view(torch.float32).nonzero()[:, 0].tolist() == [2] * 16


def test_a_nan_row_changes_no_other() -> None:
    for layout in ("interleaved", "split"):
        for name in FORMATS:
            cache = cache_of(region_of(name, layout))
            rows = cache.slot_rows(region_of(name, layout))
            values = torch.randn(7, DIMS)
            place = torch.full((7,), 2), torch.arange(7)
            kv_scatter(rows, *place, rows.codec.encode(values), rows=4)
            before = rows.read(rows.offsets(*place))
            values[3] = torch.nan
            kv_scatter(rows, *place, rows.codec.encode(values), rows=4)
            after = rows.read(rows.offsets(*place))
            others = [0, 1, 2, 4, 5, 6]
            assert torch.equal(after[others], before[others])
            assert after[3].isnan().all()


@every_layout
@pytest.mark.parametrize(
    ("name", "scales", "message"),
    [
        ("mxfp8_g32", None, "32 bytes of data for one of scale; .* at 96 has 0 bytes of data and 0 of scales"),
        (
            "nvfp4_g16",
            (32, 2),
            "8 bytes of data for one of scale; .* at 96 has 32 bytes of data and 2 of scales",
        ),
        ("bf16", (124, 4), "no scales; .* at 96 has 124 bytes of data and 4 of scales"),
        ("mxfp4_g32", (32, 2, 36), "16 bytes of data .* at 96 has 32 bytes of data and 2 of scales in rows of 36"),
    ],
)
def test_scales_that_the_format_does_not_have_are_refused(
    layout: str, name: str, scales: tuple[int, ...] | None, message: str
) -> None:
    wrong: Scales | None = None
    if scales:
        data, size = scales[:2]
        wrong = Scales(96 + data, size, data + size, data, data + size)
        if layout == "split":
            wrong = Scales(96 + 7 * data, size, size, data, data)
    row_bytes = scales[2] if scales and len(scales) > 2 else sum(scales or FORMATS[name])
    region = Region(96, 7, row_bytes, name, wrong)
    with pytest.raises(InputError, match=f"DI395.*{message}"):
        cache_of(region).slot_rows(region)


def test_sharing_layers_read_the_bytes_of_their_source(engine: Any, helpers: Any) -> None:
    """One storage, one address, one view: nothing is copied for a layer that owns no KV."""
    cache = KVCache(engine.layout, torch.device("cpu"))
    shared = 0
    for layer in engine.plan.layers:
        if layer.kv_source is None or layer.kv_source == layer.index:
            continue
        source = engine.plan.layers[layer.kv_source]
        for mine, theirs in ((layer.main, source.main), (layer.index_keys, source.index_keys)):
            alias, own = cache.block_rows(helpers.replace(mine)), cache.block_rows(theirs)
            assert alias.grid.data_ptr() == own.grid.data_ptr()
            assert alias.grid.untyped_storage().data_ptr() == cache.blocks.untyped_storage().data_ptr()
            kv_scatter(
                own,
                torch.tensor([3]),
                torch.tensor([1]),
                torch.full((1, own.grid.shape[2]), float(layer.index)),
                rows=4,
            )
            assert alias.grid[3, 1].eq(layer.index).all()
            shared += 1
    assert shared == 2 * 5, "layers 3, 5, 7, 8 and 9, main rows and index keys"
