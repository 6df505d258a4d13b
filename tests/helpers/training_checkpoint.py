"""Training checkpoints of random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from random_checkpoint import Stored, random_tensor
from safetensors.torch import save_file
from torch import Tensor

from deepinfer_gen.codegen.tensors import demanded_parameters
from deepinfer_gen.specs.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Exported:
    """``checkpoint`` holds the ``parameters``, ``folder`` what was exported of them."""

    checkpoint: Path
    folder: Path
    config: ModelConfig
    parameters: dict[str, Tensor]


def random_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Every parameter in float32; matrices have a standard deviation of 1 over the root of their input width."""
    generator = torch.Generator().manual_seed(seed)
    return {
        parameter.name: random_tensor(Stored(parameter.name, "F32", parameter.shape), {}, generator)
        for parameter in demanded_parameters(config)
    }


def write_training_checkpoint(folder: Path, parameters: dict[str, Tensor]) -> Path:
    """The files that training writes, two of them."""
    folder.mkdir()
    for number in range(2):
        save_file(dict(list(parameters.items())[number::2]), folder / f"weights-{number}.safetensors")
    return folder
