"""A tensor source without a checkpoint: bytes made from a tensor's name, scaled as trained ones are."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights import MetaWeights

_FLOATS = {"BF16": torch.bfloat16, "F32": torch.float32}
# Mean square of the 16 e2m1 values: 2 (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 16.
_E2M1_RMS = math.sqrt(8.5625)


class RandomTensors:
    """The same bytes for the same name and seed. A matrix keeps the size of what it multiplies, norms are near 1.

    Tables of n-gram rows are too large to make: their tensors are on the meta device, and ``hashed_rows`` gives their
    bytes row by row.
    """

    def __init__(self, plan: ModelPlan, constants: Constants, seed: int = 0) -> None:
        self.shapes, self.seed = MetaWeights(plan, constants), seed
        self.tile, self.report = self.shapes.tile, self.shapes.report

    def spec(self, name: str) -> TensorSpec:
        return self.shapes.spec(name)

    def stored(self, name: str) -> Tensor:
        if ".engram.embed." in name:
            return self.shapes.stored(name)
        spec = self.spec(name)
        generator = np.random.default_rng((self.seed, zlib.crc32(name.encode())))
        if spec.dtype in _FLOATS:
            return self._floats(name, spec, generator).to(_FLOATS[spec.dtype])
        return torch.from_numpy(self._codes(name, spec, generator)).view(spec.shape)

    def stack(self, names: Sequence[str]) -> Tensor:
        return torch.stack([self.stored(name) for name in names])

    def _floats(self, name: str, spec: TensorSpec, generator: np.random.Generator) -> Tensor:
        numbers = torch.from_numpy(generator.standard_normal(spec.shape, dtype=np.float32))
        if name.endswith("norm.weight") or ".engram." in name:
            return 1 + 0.1 * numbers
        if name.endswith(("_scale", "_base")):
            return 0.5 + 0.1 * numbers
        if len(spec.shape) == 2 and name != "embed.weight":
            return numbers / math.sqrt(spec.shape[1])
        return numbers

    def _codes(self, name: str, spec: TensorSpec, generator: np.random.Generator) -> np.ndarray:
        data = generator.bytes(math.prod(spec.shape))
        if spec.dtype == "F8_E4M3":
            data = data.translate(_NORMAL_E4M3)
        elif spec.dtype == "F8_E8M0":
            # The power of two that gives a row of the matrix the length 1, and its neighbours.
            weight = self.spec(f"{name.removesuffix('scale')}weight")
            packed = weight.dtype == "I8"
            inputs = weight.shape[1] * (2 if packed else 1)
            middle = 127 - round(math.log2(math.sqrt(inputs) * (_E2M1_RMS if packed else 1.0)))
            data = data.translate(bytes(middle - 1 + byte % 3 for byte in range(256)))
        return np.frombuffer(bytearray(data), np.uint8)


def hashed_rows(rows: Tensor, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """e4m3 bytes [n, width] and ue8m0 bytes [n, width / 32] of table rows int64 [n], each from its number alone."""
    columns = torch.arange(width + width // 32, dtype=torch.int64)
    # A multiplicative hash in wrapping int64; the high bits are the mixed ones.
    mixed = (rows.unsqueeze(1) * 0x1000193 + columns + seed) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 29)) * 0x1B873593CC9E2D51
    byte = (mixed >> 40) & 255
    codes = torch.frombuffer(bytearray(_NORMAL_E4M3), dtype=torch.uint8)[byte[:, :width]]
    return codes, (125 + byte[:, width:] % 3).to(torch.uint8)


def _normal_e4m3() -> bytes:
    """e4m3 codes of 256 quantiles of the normal distribution, so that a random byte maps to a normal number."""
    quantiles = torch.special.ndtri((torch.arange(256, dtype=torch.float64) + 0.5) / 256)
    return quantiles.to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8).numpy().tobytes()


_NORMAL_E4M3 = _normal_e4m3()
