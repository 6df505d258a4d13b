"""Groups of numbers that share a scale: MXFP8, MXFP4 and NVFP4, and the fp8 rounding of activations.

| format | element | group | scale of a group with largest magnitude amax |
|---|---|---|---|
| mxfp8 | e4m3 | 32 | ue8m0, 2^ceil(log2(max(amax, 1e-4) / 448)) |
| mxfp4 | e2m1 | 32 | ue8m0, 2^ceil(log2(max(amax, 6 * 2^-126) / 6)) |
| nvfp4 | e2m1 | 16 | e4m3, the code nearest to max(amax, 6 * 2^-9) / 6 |

Elements are the codes nearest to value / scale, ties to the even code. These are the rules of the released reference:
the floor of mxfp8 is one of the amplitude (so its scales reach down to 2^-22), and amax is divided by 6, not multiplied
by a rounded reciprocal. What is quantised is what is given: no rounding to bfloat16 happens here.

Values that are no ordinary numbers never leave their group. An infinity counts as the largest magnitude: it is stored
as the largest element, which decodes to an infinity again in the mx formats and to 2688 in nvfp4, whose scales end at
448. Finite values in the last half binade of float32 decode to infinities in the mx formats, since their nearest code
is 2^128. A NaN makes its group NaN: the scale is stored as NaN (ue8m0 255, e4m3 0x7F) and every element as 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_gen.runtime.number_formats import (
    E2M1_MAX,
    E4M3_MAX,
    ceil_ue8m0,
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    reciprocal_ue8m0,
)

MX_GROUP, NVFP4_GROUP = 32, 16
_MXFP8_FLOOR = 1e-4
_MXFP4_FLOOR = E2M1_MAX * math.ldexp(1.0, -126)
_NVFP4_FLOOR = E2M1_MAX * math.ldexp(1.0, -9)


def quantize_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [..., K] to e4m3 codes [..., K] and ue8m0 scales [..., K / 32], both uint8."""
    groups, scale = _mx_groups(x, _MXFP8_FLOOR, E4M3_MAX)
    return encode_e4m3(_quotients(groups * reciprocal_ue8m0(scale).unsqueeze(-1))).flatten(-2), scale


def quantize_mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [..., K] to pairs of e2m1 codes [..., K / 2] and ue8m0 scales [..., K / 32], both uint8."""
    groups, scale = _mx_groups(x, _MXFP4_FLOOR, E2M1_MAX)
    return encode_e2m1(_quotients(groups * reciprocal_ue8m0(scale).unsqueeze(-1))).flatten(-2), scale


def quantize_nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [..., K] to pairs of e2m1 codes [..., K / 2] and e4m3 scales [..., K / 16], both uint8."""
    groups = torch.unflatten(x.to(torch.float32), -1, (-1, NVFP4_GROUP))
    scale = encode_e4m3(groups.abs().amax(-1).clamp_(min=_NVFP4_FLOOR) / E2M1_MAX)
    # The exact quotient: a product with the rounded reciprocal of an e4m3 scale moves ties.
    return encode_e2m1(_quotients(groups / decode_e4m3(scale).unsqueeze(-1))).flatten(-2), scale


def dequantize_mxfp8(data: Tensor, scale: Tensor) -> Tensor:
    """The float32 values [..., K] of e4m3 codes [..., K] and ue8m0 scales [..., groups]."""
    return _scaled(decode_e4m3(data), decode_ue8m0(scale))


def dequantize_mxfp4(data: Tensor, scale: Tensor) -> Tensor:
    """The float32 values [..., K] of pairs of e2m1 codes [..., K / 2] and ue8m0 scales [..., groups]."""
    return _scaled(decode_e2m1(data), decode_ue8m0(scale))


def dequantize_nvfp4(data: Tensor, scale: Tensor) -> Tensor:
    """The float32 values [..., K] of pairs of e2m1 codes [..., K / 2] and e4m3 scales [..., groups]."""
    return _scaled(decode_e2m1(data), decode_e4m3(scale))


def dequantize_tiles(data: Tensor, scale: Tensor, tile: tuple[int, int]) -> Tensor:
    """The float32 values [N, K] of a weight: e4m3 codes [N, K], one ue8m0 scale for each tile of (rows, columns).

    ``scale`` is [ceil(N / rows), ceil(K / columns)]; tiles at the end may be cut, and one may exceed the weight.
    """
    (n, k) = data.shape
    rows, columns = min(tile[0], n), min(tile[1], k)
    if n % rows:
        data = torch.nn.functional.pad(data, (0, 0, 0, -n % rows))
    factors = decode_ue8m0(scale).repeat_interleave(columns, 1)[:, :k]
    return decode_e4m3(data).view(-1, rows, k).mul_(factors.unsqueeze(1)).view(-1, k)[:n]


def quantize_activation(x: Tensor) -> Tensor:
    """What a quantised product sees of its activations: floats [..., K] to the float32 values of their mxfp8 form.

    K is a multiple of 32. The values are exact in bfloat16 too.
    """
    return dequantize_mxfp8(*quantize_mxfp8(x))


def _mx_groups(x: Tensor, floor: float, largest: float) -> tuple[Tensor, Tensor]:
    """The groups of ``x`` as float32 [..., groups, 32], and their ue8m0 scales [..., groups]."""
    groups = torch.unflatten(x.to(torch.float32), -1, (-1, MX_GROUP))
    return groups, ceil_ue8m0(groups.abs().amax(-1).clamp_(min=floor), largest)


def _quotients(values: Tensor) -> Tensor:
    """In place: NaN, whose group's scale is NaN already, becomes 0, so that its bytes are the same everywhere."""
    return torch.nan_to_num_(values, nan=0.0, posinf=math.inf, neginf=-math.inf)


def _scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Multiply the groups of values [..., K] by their scales [..., groups], in place."""
    torch.unflatten(values, -1, (scale.shape[-1], -1)).mul_(scale.unsqueeze(-1))
    return values
