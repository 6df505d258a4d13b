"""The numerics policies: the arithmetic between and inside operators; cache formats are said by the regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Numerics:
    """``activation``: the type of streams and of what operators exchange; sums are always float32.

    ``quantized_operands``: what is multiplied with a quantised weight is first rounded to e4m3 in groups of 32.
    ``probabilities``: the type of attention weights where they meet the values; their sum stays float32.
    """

    activation: torch.dtype
    quantized_operands: bool
    probabilities: torch.dtype


NUMERICS: Mapping[str, Numerics] = {
    "released": Numerics(torch.bfloat16, quantized_operands=True, probabilities=torch.bfloat16),
    "bf16": Numerics(torch.bfloat16, quantized_operands=False, probabilities=torch.bfloat16),
    "float32": Numerics(torch.float32, quantized_operands=False, probabilities=torch.float32),
    "float32_unquantized": Numerics(torch.float32, quantized_operands=False, probabilities=torch.float32),
}
"""By ``numerics.policy``."""
