"""Training checkpoints of random numbers, and a model folder for them to be exported with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import Stored, random_tensor
from random_tokenizer import numbered_tokenizer
from safetensors.torch import save_file
from torch import Tensor

from deepinfer_gen.codegen.tensors import demanded_parameters
from deepinfer_gen.specs.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Exported:
    """``checkpoint`` holds the ``parameters``, ``model`` the config and a tokenizer, ``folder`` what was exported."""

    checkpoint: Path
    model: Path
    folder: Path
    config: ModelConfig
    parameters: dict[str, Tensor]


def write_model_folder(folder: Path, config: dict[str, Any]) -> Path:
    """config.json with a tokenizer that fills its vocabulary, whose number of classes it is given."""
    tokenizer = numbered_tokenizer(config["text_config"]["vocab_size"])
    config["text_config"]["engram_compressed_vocab_size"] = tokenizer.classes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer.content), encoding="utf-8")
    return folder


def random_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Every parameter in float32; matrices have a standard deviation of 1 over the root of their input width."""
    generator = torch.Generator().manual_seed(seed)
    return {
        parameter.name: random_tensor(Stored(parameter.name, "F32", parameter.shape), {}, generator)
        for parameter in demanded_parameters(config)
    }


def write_training_checkpoint(path: Path, parameters: dict[str, Tensor]) -> Path:
    """The safetensors file that training writes."""
    save_file(parameters, path)
    return path
