"""Root mean square normalisation."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis."""
    return F.rms_norm(x, (weight.shape[0],), weight, eps)
