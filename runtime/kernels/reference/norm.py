"""Root mean square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, which is kept with length 1."""
    square: Tensor = torch.linalg.vecdot(x, x).unsqueeze(-1)
    return square.div_(x.shape[-1]).add_(eps).rsqrt_()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * inverse_rms(x) * weight."""
    return (x * inverse_rms(x, eps)).mul_(weight)
