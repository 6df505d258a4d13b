"""Float32 weights to the formats of a released checkpoint, and back to the values that these represent.

| storage | stored as | scale of a group with largest magnitude amax |
|---|---|---|
| f32, bf16 | the number, rounded to nearest | none |
| fp8 | e4m3, a group is a tile of rows × columns | ue8m0, 2^ceil(log2(max(amax, 448 * 2^-126) / 448)) |
| mxfp4, mxfp8 | as ``runtime.block_formats`` has them, a group is 32 columns of a row | as there |

A largest magnitude just above half of what its scale holds rounds to exactly half; the same values then also fit the
next smaller scale. ``encode`` stores that smaller one, so that encoding what was decoded gives the same bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_gen.runtime.block_formats import (
    dequantize_mxfp4,
    dequantize_mxfp8,
    dequantize_tiles,
    quantize_mxfp4,
    quantize_mxfp8,
)
from deepinfer_gen.runtime.number_formats import E4M3_MAX, ceil_ue8m0, encode_e4m3, reciprocal_ue8m0

RELEASED_TILE = (32, 32)
"""Rows and columns of a dense weight that share one scale byte in the release."""

# Below it a scale would have no normal reciprocal.
_TILE_FLOOR = E4M3_MAX * math.ldexp(1.0, -126)


def represented(storage: str, tensor: Tensor, tile: tuple[int, int] = RELEASED_TILE) -> Tensor:
    """The float32 values that the stored form of float32 ``tensor`` decodes to, on its device and in its shape.

    Leading dimensions before the last two are free for all but fp8, which takes [N, K]. Equal to
    ``decode(storage, encode(storage, tensor))`` bit for bit. Nothing is differentiated through.
    """
    return decode(storage, _rounded(storage, tensor, tile), tile)


def encode(storage: str, tensor: Tensor, tile: tuple[int, int] = RELEASED_TILE) -> tuple[Tensor, ...]:
    """The stored tensors of float32 ``tensor``, values first, then scales if the storage has them; codes as uint8."""
    return _rounded(storage, represented(storage, tensor, tile), tile)


def decode(storage: str, stored: tuple[Tensor, ...], tile: tuple[int, int] = RELEASED_TILE) -> Tensor:
    """The float32 values of what ``encode`` gave."""
    match storage:
        case "f32" | "bf16":
            return stored[0].to(torch.float32)
        case "fp8":
            return dequantize_tiles(*_pair(stored), tile)
        case "mxfp4":
            return dequantize_mxfp4(*_pair(stored))
        case "mxfp8":
            return dequantize_mxfp8(*_pair(stored))
        case _:
            raise ValueError(f"there is no storage '{storage}'")


def quantize_tiles(x: Tensor, tile: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Floats [N, K] to e4m3 codes [N, K] and one ue8m0 scale for each tile of (rows, columns), both uint8.

    Scales are [ceil(N / rows), ceil(K / columns)]; tiles at the end may be cut, and one may exceed the weight.
    """
    (n, k) = x.shape
    rows, columns = min(tile[0], n), min(tile[1], k)
    padded = torch.nn.functional.pad(x.to(torch.float32), (0, -k % columns, 0, -n % rows))
    tiles = padded.view(padded.shape[0] // rows, rows, -1, columns)
    scale = ceil_ue8m0(tiles.abs().amax((1, 3)).clamp_(min=_TILE_FLOOR), E4M3_MAX)
    codes = encode_e4m3(tiles * reciprocal_ue8m0(scale)[:, None, :, None])
    return codes.view(padded.shape)[:n, :k].contiguous(), scale


def _rounded(storage: str, tensor: Tensor, tile: tuple[int, int]) -> tuple[Tensor, ...]:
    """One pass of rounding: the right values, not always the smallest scale."""
    match storage:
        case "f32":
            return (tensor.detach().to(torch.float32),)
        case "bf16":
            return (tensor.detach().to(torch.bfloat16),)
        case "fp8":
            return quantize_tiles(tensor.detach(), tile)
        case "mxfp4":
            return quantize_mxfp4(tensor.detach())
        case "mxfp8":
            return quantize_mxfp8(tensor.detach())
        case _:
            raise ValueError(f"there is no storage '{storage}'")


def _pair(stored: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    values, scale = stored
    return values, scale
