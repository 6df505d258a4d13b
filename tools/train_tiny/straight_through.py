"""The narrow formats of weights and caches as roundings of floats, for caches with the gradient passed through.

Arithmetic alone, so that a compiler can fuse it; the values are those of ``deepinfer_gen.runtime.block_formats``, bit
for bit (``tests/train_tiny/test_straight_through.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from fusion import fused
from torch import Tensor

_E4M3_MAX, _E2M1_MAX = 448.0, 6.0
_MANTISSA_BITS, _MANTISSA, _BIAS = 23, 0x7FFFFF, 127


def fp8_values(groups: Tensor) -> Tensor:
    """e4m3 with one power-of-two scale a row of ``groups`` [G, elements]: the tiles of dense weights."""
    return _mx_values(groups, _E4M3_MAX * 2.0**-126, _E4M3_MAX, _e4m3)


def mxfp8_values(groups: Tensor) -> Tensor:
    """e4m3 with one power-of-two scale a row: window rows and Engram rows, in groups of 32."""
    return _mx_values(groups, 1e-4, _E4M3_MAX, _e4m3)


def mxfp4_values(groups: Tensor) -> Tensor:
    """e2m1 with one power-of-two scale a row: experts, index queries and keys, in groups of 32."""
    return _mx_values(groups, _E2M1_MAX * 2.0**-126, _E2M1_MAX, _e2m1)


def nvfp4_values(groups: Tensor) -> Tensor:
    """e2m1 with one e4m3 scale a row: entries of the compressed cache, in groups of 16."""
    scale = _e4m3(groups.abs().amax(-1, keepdim=True).clamp(min=_E2M1_MAX * 2.0**-9) / _E2M1_MAX)
    return _e2m1(groups / scale) * scale


def mxfp8(x: Tensor) -> Tensor:
    """A window row as its ring stores it."""
    return _passed(x, 32, _mxfp8_rows)


def mxfp4(x: Tensor) -> Tensor:
    """An index query, or a key as the index cache stores it."""
    return _passed(x, 32, _mxfp4_rows)


def nvfp4(x: Tensor) -> Tensor:
    """An entry as the compressed cache stores it."""
    return _passed(x, 16, _nvfp4_rows)


_mxfp8_rows, _mxfp4_rows, _nvfp4_rows = (
    fused(values, any_shape=True) for values in (mxfp8_values, mxfp4_values, nvfp4_values)
)


def _passed(x: Tensor, size: int, values: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        error = values(x.float().reshape(-1, size)).view(x.shape).to(x.dtype) - x
    return x + error


def _mx_values(groups: Tensor, floor: float, largest: float, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    scale = _power_of_two(groups.abs().amax(-1, keepdim=True).clamp(min=floor), largest)
    return rounding(groups / scale) * scale


def _power_of_two(amax: Tensor, largest: float) -> Tensor:
    """The smallest power of two s with amax <= s * largest, on the bits of the float."""
    fraction = largest / 2.0 ** (_exponent(largest) - _BIAS) - 1
    mantissa = round(fraction * 2**_MANTISSA_BITS)
    above = ((amax.view(torch.int32) + (_MANTISSA - mantissa)) >> _MANTISSA_BITS) - (_exponent(largest) - _BIAS)
    bits: Tensor = above << _MANTISSA_BITS
    return bits.view(torch.float32)


def _exponent(value: float) -> int:
    return int(value).bit_length() - 1 + _BIAS


def _e4m3(x: Tensor) -> Tensor:
    return x.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).float()


def _e2m1(x: Tensor) -> Tensor:
    magnitude = x.abs()
    # Steps of 0.5 up to 2, of 1 up to 4, of 2 up to 6; rounding half to even is rounding to the even code on each.
    value = torch.where(magnitude < 2, (magnitude * 2).round() / 2, magnitude.round())
    value = torch.where(magnitude < 4, value, (magnitude / 2).round() * 2).clamp(max=_E2M1_MAX)
    return torch.copysign(value, x)
