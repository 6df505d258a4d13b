"""Every code of the narrow formats, and rounding at every boundary between two codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.runtime.number_formats import (
    ceil_ue8m0,
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    reciprocal_ue8m0,
)

BYTES = torch.arange(256, dtype=torch.uint8)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:127]


def same(found: torch.Tensor, expected: Sequence[float]) -> bool:
    """Equal bits; NaN equals NaN."""
    wanted = torch.tensor(expected, dtype=torch.float32)
    return torch.equal(found.nan_to_num(nan=7e7), wanted.nan_to_num(nan=7e7)) and torch.equal(
        found.signbit() & ~found.isnan(), wanted.signbit() & ~wanted.isnan()
    )


def test_every_e4m3_code() -> None:
    half = [*E4M3, math.nan]
    assert same(decode_e4m3(BYTES), [*half, *(-v for v in half)])


def test_every_e2m1_byte() -> None:
    codes = [*E2M1, *(-v for v in E2M1)]
    assert same(decode_e2m1(BYTES), [codes[n] for b in range(256) for n in (b & 15, b >> 4)])


def test_every_ue8m0_code_and_its_reciprocal() -> None:
    assert same(decode_ue8m0(BYTES), [2.0 ** (e - 127) for e in range(255)] + [math.nan])
    factors = decode_ue8m0(BYTES[1:254]) * reciprocal_ue8m0(BYTES[1:254])
    assert factors.eq(1).all()
    assert reciprocal_ue8m0(BYTES[255:]).isnan().all()


def test_e4m3_reads_bytes_wherever_they_lie() -> None:
    """Columns of records, one column, one record alone, a start at an odd byte, an odd number of them, none."""
    records = torch.arange(51, dtype=torch.uint8).view(3, 17)
    assert torch.equal(decode_e4m3(records[:, 1:]), decode_e4m3(records)[:, 1:])
    assert torch.equal(decode_e4m3(records.view(-1)[1:33]), decode_e4m3(records).view(-1)[1:33])
    for part in (records[:1, :16], records[2:, 1:], records[:, 5], records[:2, 16:], records[1, 3]):
        assert same(decode_e4m3(part).reshape(-1), [E4M3[c] for c in part.reshape(-1).tolist()])
    assert decode_e4m3(records[:0, 1:]).shape == (0, 16)
    assert encode_e2m1(torch.zeros(0, 6)).shape == (0, 3)


def _around(values: Sequence[float]) -> list[float]:
    """Each midpoint of neighbouring values, each value, and the float32 just below and above, with both signs."""
    points = torch.tensor([*values, *((a + b) / 2 for a, b in itertools.pairwise(values))])
    infinity = torch.tensor(math.inf)
    near = torch.cat([points, torch.nextafter(points, infinity), torch.nextafter(points, -infinity)]).abs()
    return torch.cat([near, -near]).tolist()


def _nearest(value: float, table: Sequence[float]) -> int:
    exact = abs(Fraction(value))
    code = min(range(len(table)), key=lambda c: (abs(Fraction(table[c]) - exact), c % 2))
    return code + (len(table) + len(table) % 2 if math.copysign(1, value) < 0 else 0)


def _unpacked(values: torch.Tensor) -> torch.Tensor:
    packed = encode_e2m1(values)
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


@pytest.mark.parametrize(
    ("encode", "table", "beyond"),
    [(encode_e4m3, E4M3, [449.0, 464.0, 480.0, 1e9, math.inf]), (_unpacked, E2M1, [6.1, 7.0, 8.0, 1e38, math.inf])],
    ids=["e4m3", "e2m1"],
)
def test_rounding_at_every_boundary(
    encode: Callable[[torch.Tensor], torch.Tensor], table: Sequence[float], beyond: Sequence[float]
) -> None:
    """To nearest, ties to even, up to the largest code; tiny and subnormal values too."""
    tiny = [2.0**-149, 1e-40, 2.0**-126, 2.0**-20]
    values = [*_around(table), *tiny, *(-v for v in tiny)]
    top = len(table) - 1
    negative = len(table) + len(table) % 2
    values += [0.0] * (len(values) % 2)
    expected = [_nearest(v, table) for v in values]
    large = [*beyond, *(-v for v in beyond)]
    expected += [top] * len(beyond) + [top + negative] * len(beyond)
    assert encode(torch.tensor([*values, *large])).tolist() == expected


def test_e4m3_keeps_nan() -> None:
    assert encode_e4m3(torch.tensor([math.nan, 1.0])).tolist() == [0x7F, 0x38]


@pytest.mark.parametrize("largest", [448.0, 6.0])
@given(exponent=st.integers(-120, 126), step=st.integers(-3, 3))
def test_the_scale_is_the_smallest_power_that_fits(largest: float, exponent: int, step: int) -> None:
    """Around each amax that just fits: amax <= largest * 2^k and amax > largest * 2^(k - 1), exactly."""
    at = torch.tensor([largest * 2.0 ** min(exponent, 118)], dtype=torch.float32)
    amax = (at.view(torch.int32) + step).view(torch.float32)
    power = Fraction(2) ** (int(ceil_ue8m0(amax, largest)) - 127)
    exact, top = Fraction(float(amax)), Fraction(largest)
    assert top * power / 2 < exact <= top * power


@given(bits=st.integers(0, 0x7F800000 - 1))
def test_the_scale_of_any_amplitude(bits: int) -> None:
    amax = torch.tensor([bits], dtype=torch.int32).view(torch.float32).clamp(min=6 * 2.0**-126)
    power = Fraction(2) ** (int(ceil_ue8m0(amax, 6.0)) - 127)
    assert 6 * power / 2 < Fraction(float(amax)) <= 6 * power or float(amax) == 6 * 2.0**-126


def test_the_scale_of_nan_is_nan_whatever_its_payload() -> None:
    payloads = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert ceil_ue8m0(payloads, 448.0).tolist() == [255] * 4
