"""The confidence of a draft as the scheduler counts it: a 16-bit integer, made on the device."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 65535
"""The confidence of a probability of 1. (Survivals count to 65536, so no draft is certain to survive.)"""


def quantise(probability: Tensor) -> Tensor:
    """The nearest even of p x 65535.

    ``probability`` is float of any shape, in [0, 1]; the result is uint16 of that shape. The product of a float32 and
    65535 is exact in float64, so every device rounds alike.
    """
    return torch.round(probability.to(torch.float64) * STEPS).to(torch.uint16)


def of_logits(confidence_logits: Tensor) -> Tensor:
    """What the confidence head emits, float of any shape, to uint16 of that shape."""
    return quantise(torch.sigmoid(confidence_logits))
