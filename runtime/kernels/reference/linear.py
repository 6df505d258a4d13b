"""Dense products with a weight held as one float32 copy."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles


def linear(x: Tensor, weight: Tensor, *, tokens: int) -> Tensor:
    """x [T, in] times weight [out, in] transposed: [T, out], ``tokens`` rows at a time."""
    if x.shape[0] <= tokens:
        return F.linear(x, weight)
    return torch.cat([F.linear(x[t], weight) for t in tiles(x.shape[0], tokens)])


def grouped_linear(x: Tensor, weight: Tensor, *, tokens: int) -> Tensor:
    """Block-diagonal product: x [T, groups, in], weight [groups, out, in] to [T, groups * out]."""
    transposed = weight.transpose(1, 2)
    parts = [torch.bmm(x[t].transpose(0, 1), transposed).transpose(0, 1).flatten(1) for t in tiles(x.shape[0], tokens)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
