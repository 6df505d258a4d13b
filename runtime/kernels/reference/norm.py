"""Root mean square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis of float32 x, which is kept with length 1."""
    square: Tensor = torch.linalg.vecdot(x, x).unsqueeze(-1)
    return square.div_(x.shape[-1]).add_(eps).rsqrt_()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * inverse_rms(x) * weight in float32, rounded once to the type of x."""
    wide = x.to(torch.float32)
    return (wide * inverse_rms(wide, eps)).mul_(weight.to(torch.float32)).to(x.dtype)
