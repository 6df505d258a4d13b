"""Decoding of stored weights: FP8 tiles, MXFP4 experts, FP8 rows. Exact: every value is representable in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Code of an e2m1 nibble to its value: sign, two exponent bits, one mantissa bit (OCP MX specification 1.0).
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_SIGNED = (*_E2M1, *(-v for v in _E2M1))
# A ue8m0 byte e is 2^(e - 127); 255 is NaN.
_UE8M0 = torch.tensor([math.ldexp(1.0, e - 127) for e in range(255)] + [math.nan], dtype=torch.float32)
# A byte holds two e2m1 codes, the even element in the low nibble.
_E2M1_PAIRS = torch.tensor([(_E2M1_SIGNED[b & 15], _E2M1_SIGNED[b >> 4]) for b in range(256)], dtype=torch.float32)


def decode_ue8m0(scale: Tensor) -> Tensor:
    """uint8 exponents to float32 powers of two, same shape."""
    return _UE8M0.to(scale.device)[scale.long()]


def decode_e4m3_tiles(weight: Tensor, scale: Tensor, tile: int) -> Tensor:
    """e4m3 bytes [N, K] with one ue8m0 byte per tile x tile square [ceil(N / tile), ceil(K / tile)] to float32."""
    n, k = weight.shape
    factors = decode_ue8m0(scale).repeat_interleave(tile, 0)[:n].repeat_interleave(tile, 1)[:, :k]
    return weight.view(torch.float8_e4m3fn).to(torch.float32) * factors


def decode_e4m3_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """e4m3 bytes [N, K] with one ue8m0 byte per row and group [N, groups] to float32 [N, K]."""
    return _scale_groups(weight.view(torch.float8_e4m3fn).to(torch.float32), scale)


def decode_mxfp4_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Packed e2m1 bytes [N, K / 2] with one ue8m0 byte per row and group [N, groups] to float32 [N, K]."""
    return _scale_groups(_E2M1_PAIRS.to(weight.device)[weight.long()].flatten(1), scale)


def _scale_groups(values: Tensor, scale: Tensor) -> Tensor:
    """Multiply the groups of each row of values [N, K] by their scales [N, groups]."""
    count, groups = scale.shape
    return (values.view(count, groups, -1) * decode_ue8m0(scale).unsqueeze(2)).view(count, -1)


# Largest e4m3 value, and the smallest maximum of a group that a scale is made for.
_E4M3_MAX, _MIN_AMAX, _GROUP = 448.0, 1e-4, 32


def quantize_activation(x: Tensor) -> Tensor:
    """x [..., K] rounded to e4m3 in groups of 32 with power-of-two scales, as float32."""
    grouped = x.to(torch.float32).view(*x.shape[:-1], -1, _GROUP)
    amax = grouped.abs().amax(-1, keepdim=True).clamp(min=_MIN_AMAX)
    scale = torch.exp2(torch.ceil(torch.log2(amax / _E4M3_MAX)))
    codes = (grouped / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(torch.float32) * scale).view(x.shape)
