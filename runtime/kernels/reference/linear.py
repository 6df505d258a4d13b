"""Dense products with a weight held as one float32 copy."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiled


def linear(x: Tensor, weight: Tensor, *, tokens: int) -> Tensor:
    """x [T, in] times weight [out, in] transposed: [T, out], ``tokens`` rows at a time."""
    return tiled(lambda tile: F.linear(tile, weight), tokens, x)


def grouped_linear(x: Tensor, weight: Tensor, *, tokens: int) -> Tensor:
    """Block-diagonal product: x [T, groups, in], weight [groups, out, in] to [T, groups * out]."""
    transposed = weight.transpose(1, 2)
    return tiled(lambda tile: torch.bmm(tile.transpose(0, 1), transposed).transpose(0, 1).flatten(1), tokens, x)
