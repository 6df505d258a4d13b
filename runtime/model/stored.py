"""Weight matrices as the checkpoint stores them, with what their bytes mean; operators decode them on use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.block_formats import dequantize_mxfp4, dequantize_tiles
from deepinfer_gen.runtime.weights import TensorSource


class Matrix(nn.Module):
    """``name.weight`` [out, in]: BF16 or F32, or e4m3 bytes with one ue8m0 byte per tile (``name.scale``)."""

    values: Tensor
    scale: Tensor | None

    def __init__(self, source: TensorSource, name: str) -> None:
        super().__init__()
        self.stored_type = source.spec(f"{name}.weight").dtype
        if self.stored_type not in {"BF16", "F32", "F8_E4M3"}:
            raise ValueError(f"'{name}.weight' is stored as {self.stored_type}, which is no dense matrix")
        self.tile = source.tile
        self.register_buffer("values", source.stored(f"{name}.weight"))
        self.register_buffer("scale", source.stored(f"{name}.scale") if self.quantized else None)

    @property
    def quantized(self) -> bool:
        """Whether the values are 8-bit; the ``released`` policy then quantises what they are multiplied with."""
        return self.stored_type == "F8_E4M3"

    def decode(self) -> Tensor:
        """float32 [out, in]; exact."""
        if self.scale is None:
            return self.values.to(torch.float32)
        return dequantize_tiles(self.values, self.scale, self.tile)


class ExpertStack(nn.Module):
    """One matrix [out, in] of every expert, packed e2m1 [E, out, in / 2] with ue8m0 scales [E, out, in / 32].

    ``roles`` are joined along ``out``: ``("w1", "w3")`` is gate | up.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, source: TensorSource, experts: Sequence[str], roles: Sequence[str]) -> None:
        super().__init__()
        for part, suffix in (("values", "weight"), ("scale", "scale")):
            stacked = source.stack([f"{expert}.{role}.{suffix}" for expert in experts for role in roles])
            self.register_buffer(part, stacked.view(len(experts), -1, stacked.shape[-1]))

    def __len__(self) -> int:
        return self.values.shape[0]

    def decode(self, expert: int) -> Tensor:
        """float32 [out, in] of one expert; exact."""
        return dequantize_mxfp4(self.values[expert], self.scale[expert])
