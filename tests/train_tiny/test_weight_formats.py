"""Stored forms of weights: what is decoded is what was represented, and nothing moves when it is stored again."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from weight_formats import RELEASED_TILE, decode, encode, quantize_tiles, represented

STORAGES = ("f32", "bf16", "fp8", "mxfp4", "mxfp8")
E4M3 = sorted(
    {(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)} - {480.0} | {m / 512 for m in range(8)}
)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    """[N, K] with rows and columns of very different size, zeros, and values on and beside the edges of a scale."""
    rows, groups, seed = draw(st.integers(1, 70)), draw(st.integers(1, 3)), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 32 * groups, generator=generator)
    x *= torch.exp2(torch.randint(-12, 12, (rows, 1), generator=generator).float())
    for value in draw(st.lists(st.sampled_from([0.0, -0.0, 448.0, 449.0, 224.0, 225.0, 6.0, 6.1, 3.1, 2.0**-30]))):
        x[draw(st.integers(0, rows - 1)), draw(st.integers(0, 32 * groups - 1))] = value
    return x if draw(st.booleans()) else torch.zeros_like(x)


@pytest.mark.parametrize("storage", STORAGES)
@given(x=weights())
def test_stored_again_is_the_same(storage: str, x: Tensor) -> None:
    stored, values = encode(storage, x), represented(storage, x)
    assert torch.equal(bits(decode(storage, stored)), bits(values))
    assert torch.equal(bits(represented(storage, values)), bits(values))
    again = encode(storage, values)
    assert all(torch.equal(a, b) for a, b in zip(again, stored, strict=True))


def nearest(value: float, scale: float, codes: list[float]) -> float:
    """The distance to the nearest value of a format; the search goes over all of them."""
    return min(abs(abs(value) - code * scale) for code in codes)


@pytest.mark.parametrize(
    ("storage", "codes", "largest", "floor", "group"),
    [
        ("fp8", E4M3, 448.0, 448 * 2.0**-126, (32, 32)),
        ("mxfp8", E4M3, 448.0, 1e-4, (1, 32)),
        ("mxfp4", E2M1, 6.0, 6 * 2.0**-126, (1, 32)),
    ],
)
@given(x=weights())
def test_the_nearest_value_of_the_smallest_scale(
    storage: str, codes: list[float], largest: float, floor: float, group: tuple[int, int], x: Tensor
) -> None:
    """By search: a group's scale is the smallest power of two that reaches, and no value of it lies nearer."""
    values = represented(storage, x)
    rows, columns = group
    # One number of each group suffices, and the largest.
    for top in range(0, x.shape[0], rows):
        tile, kept = x[top : top + rows, -columns:].double(), values[top : top + rows, -columns:].double()
        amax = max(float(tile.abs().max()), floor)
        scale = 2.0 ** math.ceil(math.log2(amax / largest))
        for place in {0, int(tile.abs().argmax())}:
            value, found = float(tile.flatten()[place]), float(kept.flatten()[place])
            assert abs(value - found) == nearest(value, scale, codes)
            assert math.copysign(1.0, found) == math.copysign(1.0, value)


@given(x=weights())
def test_bfloat16_is_within_half_a_step(x: Tensor) -> None:
    error = (represented("bf16", x).double() - x.double()).abs()
    assert bool((error <= x.double().abs() * 2.0**-8).all())


def test_a_tile_by_hand() -> None:
    """A weight [2, 3] in tiles of 2 × 2, the last cut: 449 needs scale 2; 1 in tile 2 has scale 2^-8, 256 is its code.

    In scale 2 the codes of 449 (224.5 rounds to 224), 5 (2.5), -0.004 (-0.002 rounds to -1/512) and 0 are 0x76, 0x42,
    0x81 and 0x00; in scale 2^-8 those of 1 and -1.125 are 256 and -288. 224 in scale 2 is also 448 in scale 1.
    """
    x = torch.tensor([[449.0, 5.0, 1.0], [-0.004, 0.0, -1.125]])
    codes, scale = quantize_tiles(x, (2, 2))
    assert codes.tolist() == [[0x76, 0x42, 0x78], [0x81, 0x00, 0xF9]]
    assert scale.tolist() == [[128, 119]]
    codes, scale = encode("fp8", x, (2, 2))
    assert codes.tolist() == [[0x7E, 0x4A, 0x78], [0x82, 0x00, 0xF9]]
    assert scale.tolist() == [[127, 119]]


@given(rows=st.integers(1, 5), columns=st.integers(1, 5), tile=st.sampled_from([(1, 1), (3, 2), (2**40, 2**40)]))
def test_any_tile(rows: int, columns: int, tile: tuple[int, int]) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * 8 + columns))
    codes, scale = encode("fp8", x, tile)
    assert codes.shape == x.shape
    assert scale.shape == (-(-rows // tile[0]), -(-columns // tile[1]))
    assert torch.equal(decode("fp8", (codes, scale), tile), represented("fp8", x, tile))


@pytest.mark.parametrize("storage", ["f32", "bf16", "mxfp4", "mxfp8"])
def test_a_stack_is_each_of_its_matrices(storage: str) -> None:
    x = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(represented(storage, x), torch.stack([represented(storage, part) for part in x]))


@pytest.mark.parametrize("storage", STORAGES)
def test_weights_in_training_are_left_alone(storage: str) -> None:
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = x.detach().clone()
    assert not represented(storage, x).requires_grad
    assert torch.equal(x, before)


def test_an_unknown_storage() -> None:
    assert RELEASED_TILE == (32, 32)
    with pytest.raises(ValueError, match="int4"):
        represented("int4", torch.zeros(1, 32))
    with pytest.raises(ValueError, match="int4"):
        decode("int4", ())
