"""Dense products. Sums are float32 whatever the policy; the result is rounded once to the type of the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.block_formats import quantize_activation
from deepinfer_gen.runtime.kernels.reference.tiles import tiled


def operand(x: Tensor, *, quantized: bool) -> Tensor:
    """x [..., in] as it enters a product: float32, rounded to e4m3 in groups of 32 where ``quantized``."""
    return quantize_activation(x) if quantized else x.to(torch.float32)


def linear(x: Tensor, weight: Tensor, *, quantized: bool, tokens: int) -> Tensor:
    """x [T, in] times float32 weight [out, in] transposed: [T, out] in the type of x, ``tokens`` rows at a time."""
    return tiled(lambda tile: F.linear(operand(tile, quantized=quantized), weight).to(x.dtype), tokens, x)


def grouped_linear(x: Tensor, weight: Tensor, *, tokens: int) -> Tensor:
    """Block-diagonal product: x [T, groups, in], float32 weight [groups, out, in] to [T, groups * out]."""
    transposed = weight.transpose(1, 2)

    def product(tile: Tensor) -> Tensor:
        return torch.bmm(tile.to(torch.float32).transpose(0, 1), transposed).transpose(0, 1).flatten(1).to(x.dtype)

    return tiled(product, tokens, x)
