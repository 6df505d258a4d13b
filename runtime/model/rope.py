"""Rotary tables and the rotation of adjacent channel pairs of a vector's tail."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_gen.runtime.plan_types import RopePlan

# Width of the YaRN ramp when its two ends coincide, as in the released code.
_MIN_RAMP = 0.001


def rotary_table(plan: RopePlan, dims: int, positions: int) -> Tensor:
    """complex64 [positions, dims / 2] of unit rotations; frequency-only YaRN when ``factor`` is not 1, no mscale."""
    frequencies = 1.0 / (plan.theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims))
    if plan.factor != 1:
        pairs = torch.arange(dims // 2, dtype=torch.float32)
        ramp = ((pairs - plan.low) / max(plan.high - plan.low, _MIN_RAMP)).clamp(0, 1)
        frequencies = frequencies / plan.factor * ramp + frequencies * (1 - ramp)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate_tail(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the last channels of x [T, D] or [T, H, D] in place by ``rotation`` complex64 [T, dims / 2]; returns x.

    The product is float32, rounded once to the type of x.
    """
    tail = x[..., -2 * rotation.shape[1] :]
    turn = rotation if x.dim() == 2 else rotation.unsqueeze(1)
    wide = tail.to(torch.float32)
    torch.view_as_complex(wide.view(*tail.shape[:-1], rotation.shape[1], 2)).mul_(turn)
    if wide is not tail:
        tail.copy_(wide)
    return x
