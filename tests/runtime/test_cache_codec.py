"""Cache records: the bytes of the numeric reference, and exact loops over every kind of number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import cache_records

from deepinfer_gen.runtime.block_formats import quantize_activation
from deepinfer_gen.runtime.cache_codec import CODECS, codec_of

ORACLE = Path(__file__).parents[1] / "oracle"
QUANTISED = {"mxfp8_g32": 33, "mxfp4_g32": 17, "nvfp4_g16": 18}
"""Bytes of a record of 32 values."""
GOLDEN = {
    "mxfp8_g32": ("swa_528", "swa_deq", 512),
    "nvfp4_g16": ("main_288", "main_deq", 512),
    "mxfp4_g32": ("index_68", "index_deq", 128),
}


@pytest.fixture(scope="module")
def golden() -> Mapping[str, Any]:
    with np.load(ORACLE / "golden_formats.npz") as data:
        return dict(data)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_records(name: str, golden: Mapping[str, Any]) -> None:
    """Rows from 1e-7 to 374 at released widths: every byte, and every decoded value."""
    stored, decoded, dims = GOLDEN[name]
    codec, rows = codec_of(name), torch.from_numpy(golden["x"])[:, :dims]
    assert codec.encode(rows).numpy().tobytes() == golden[stored].tobytes()
    assert codec.decode(torch.from_numpy(golden[stored])).numpy().tobytes() == golden[decoded].tobytes()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_loops_of_the_tests_agree_with_the_golden_records(name: str, golden: Mapping[str, Any]) -> None:
    stored, decoded, dims = GOLDEN[name]
    for row, record, values in zip(*(golden[key][::2] for key in ("x", stored, decoded)), strict=True):
        assert cache_records.encode(row[:dims].tolist(), name) == record.tobytes()
        assert cache_records.decode(record.tobytes(), name) == values.tolist()


def float_of(bits: int) -> float:
    return float(np.array([bits], np.uint32).view(np.float32)[0])


any_bits = st.integers(0, 2**32 - 1).map(float_of)
special = st.sampled_from(
    [0.0, -0.0, 2.0**-149, 2.0**-126, 1e-4, 6 * 2.0**-9, float_of(0x7F7FFFFF), math.inf, -math.inf, math.nan]
)
ordinary = st.floats(-500, 500, width=32)
near_ties = st.builds(
    lambda code, power, step: float_of(int(np.float32(code * 2.0**power).view(np.uint32)) + step),
    st.sampled_from([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1.0625, 1.1875, 6.0, 448.0]),
    st.integers(-40, 40),
    st.integers(-1, 1),
)
rows_of_64 = st.one_of(
    *(st.lists(numbers, min_size=64, max_size=64) for numbers in (any_bits, ordinary, near_ties)),
    st.lists(st.one_of(special, ordinary, any_bits), min_size=64, max_size=64),
)


@pytest.mark.parametrize("name", QUANTISED)
@settings(max_examples=40, deadline=None)
@given(row=rows_of_64)
def test_any_row_equals_the_exact_loops(name: str, row: list[float]) -> None:
    """Random bits, denormal, zero, huge, infinite and NaN values, and values beside every tie."""
    codec = codec_of(name)
    record = codec.encode(torch.tensor(row, dtype=torch.float32)).numpy().tobytes()
    assert record == cache_records.encode(row, name)
    np.testing.assert_array_equal(
        codec.decode(torch.frombuffer(bytearray(record), dtype=torch.uint8)).numpy(),
        np.array(cache_records.decode(record, name), np.float32),
    )


def test_every_tie_of_nvfp4() -> None:
    """Beside each amplitude whose sixth lies between two scale codes, and each value between two element codes."""
    scales = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    between = (scales[:-1] + scales[1:]) / 2 * 6
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    rows = torch.zeros(2 * 126, 16)
    rows[:125, 0] = between
    rows[126:, 0], rows[126:, 1:8] = scales * 6, scales.unsqueeze(1) * ties
    for step in (-1, 0, 1):
        moved = torch.where(rows == 0, 0.0, (rows.view(torch.int32) + step).view(torch.float32))
        stored = codec_of("nvfp4_g16").encode(moved)
        for row, record in zip(moved.tolist(), stored.numpy(), strict=True):
            assert record.tobytes() == cache_records.encode(row, "nvfp4_g16")


@pytest.mark.parametrize("name", QUANTISED)
def test_any_record_decodes_as_the_exact_loops(name: str) -> None:
    """Bytes that no encoder wrote are read too: an unwritten block, a scale code that no amplitude has."""
    generator = torch.Generator().manual_seed(5)
    records = torch.randint(0, 256, (300, QUANTISED[name]), dtype=torch.uint8, generator=generator)
    decoded = codec_of(name).decode(records).numpy()
    for record, values in zip(records.numpy(), decoded, strict=True):
        # A negative e4m3 scale is no scale that the encoder writes, and the loops do not know it.
        if name != "nvfp4_g16" or not (record[-2:] & 128).any():
            np.testing.assert_array_equal(values, np.array(cache_records.decode(record.tobytes(), name), np.float32))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_value_stays_in_its_group(name: str, bad: float) -> None:
    """Other rows, and other groups of its row, keep their bytes; a NaN makes its whole group NaN."""
    codec = codec_of(name)
    rows = torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
    spoiled = rows.clone()
    spoiled[2, 70] = bad
    before, after = codec.encode(rows), codec.encode(spoiled)
    assert torch.equal(before[[0, 1, 3, 4]], after[[0, 1, 3, 4]])
    decoded, group = codec.decode(after)[2], 16 if name == "nvfp4_g16" else 32
    inside = torch.arange(128) // group == 70 // group
    assert torch.equal(decoded[~inside], codec.decode(before)[2][~inside])
    if math.isnan(bad):
        assert decoded[inside].isnan().all()
    else:
        assert decoded[70].item() == (math.copysign(2688.0, bad) if name == "nvfp4_g16" else bad)
        assert not decoded.isnan().any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a GPU's records with the CPU's")
@pytest.mark.parametrize("name", QUANTISED)
def test_a_gpu_stores_the_same_bytes(name: str) -> None:
    codec = codec_of(name)
    bits = torch.randint(-(2**31), 2**31, (4096, 128), generator=torch.Generator().manual_seed(4), dtype=torch.int64)
    rows = torch.cat([bits.to(torch.int32).view(torch.float32), torch.randn(4096, 128) * 100])
    stored = codec.encode(rows)
    assert torch.equal(codec.encode(rows.cuda()).cpu().view(torch.uint8), stored.view(torch.uint8))
    assert codec.decode(stored.cuda()).cpu().nan_to_num(7e7).equal(codec.decode(stored).nan_to_num(7e7))


def test_every_nan_gives_the_same_bytes() -> None:
    """Sign and payload of a NaN depend on the processor; the record must not."""
    bits = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x400000], dtype=torch.int32)
    for name in QUANTISED:
        rows = torch.ones(5, 32)
        rows[:, 3] = bits.view(torch.float32)
        stored = codec_of(name).encode(rows)
        assert torch.equal(stored, stored[:1].expand_as(stored))


@pytest.mark.parametrize("name", CODECS)
def test_shapes_and_float_types(name: str) -> None:
    """Any leading shape, an empty one too; what bfloat16 and half values store is what their float32 values store."""
    codec = codec_of(name)
    rows = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2))
    for dtype in (torch.bfloat16, torch.float16):
        narrow = rows.to(dtype)
        assert torch.equal(codec.encode(narrow), codec.encode(narrow.to(torch.float32)))
    stored = codec.encode(rows)
    assert stored.dtype is codec.storage
    assert stored.shape[:2] == (2, 3)
    assert torch.equal(codec.encode(rows[1, 2]), stored[1, 2])
    assert torch.equal(codec.encode(rows.transpose(0, 1)), stored.transpose(0, 1))
    assert codec.decode(stored).shape == rows.shape
    assert codec.decode(codec.encode(rows[:0])).shape == (0, 3, 64)
    assert rows.equal(torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2))), "the input is left alone"


@pytest.mark.parametrize("name", CODECS)
def test_a_stored_row_is_a_fixed_point(name: str) -> None:
    """Encoding what was decoded gives the values again, so that moving rows between engines loses nothing."""
    codec = codec_of(name)
    once = codec.decode(codec.encode(torch.randn(64, 128, generator=torch.Generator().manual_seed(3)) * 3))
    if name != "nvfp4_g16":
        assert torch.equal(codec.decode(codec.encode(once)), once)
    else:
        # 6 times an e4m3 scale, over 6, is that scale; a group whose largest code is 4 gets a finer one.
        full = (once.view(64, 8, 16).abs().amax(2, keepdim=True) / codec_scales(once)).eq(6).expand(-1, -1, 16)
        again = codec.decode(codec.encode(once))
        assert torch.equal(again.view(64, 8, 16)[full], once.view(64, 8, 16)[full])


def codec_scales(rows: torch.Tensor) -> torch.Tensor:
    """The e4m3 scales of the groups of 16 of each row."""
    stored = codec_of("nvfp4_g16").encode(rows)[:, -rows.shape[1] // 16 :]
    return stored.contiguous().view(torch.float8_e4m3fn).to(torch.float32).unsqueeze(2)


@settings(max_examples=15, deadline=None)
@given(row=rows_of_64)
def test_activations_follow_the_rule_of_the_window_rows(row: list[float]) -> None:
    values = quantize_activation(torch.tensor(row, dtype=torch.float32))
    expected = cache_records.decode(cache_records.encode(row, "mxfp8_g32"), "mxfp8_g32")
    np.testing.assert_array_equal(values.numpy(), np.array(expected, np.float32))
    assert values.bfloat16().float().nan_to_num(7e7).equal(values.nan_to_num(7e7)), "exact in bfloat16"


def test_activations_by_hand() -> None:
    """amax 448 has scale 1 and 449 scale 2; 1e-4 is the floor of the amplitude: 2^ceil(log2(1e-4 / 448)) = 2^-22."""
    x = torch.zeros(3, 32)
    x[0, :3] = torch.tensor([448.0, 17.0, 0.25])
    x[1, :3] = torch.tensor([449.0, 17.0, 19.0])
    x[2, :3] = torch.tensor([2.0**-22, 2.0**-31, 2.0**-33])
    found = quantize_activation(x)[:, :3].tolist()
    # 17 lies between 16 and 18 at scale 1 and is 8.5 at scale 2; both ties go to the even code.
    assert found == [[448.0, 16.0, 0.25], [448.0, 16.0, 20.0], [2.0**-22, 2.0**-31, 0.0]]
