"""Random checkpoints in the released names, dtypes and scale layouts, for any model configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from random_config import RandomModel
from safetensors.torch import save_file
from torch import Generator, Tensor

from deepinfer_gen.codegen.tensors import demanded_tensors
from deepinfer_gen.specs.model_config import MAX_CONFIG_BYTES, ModelConfig, read_model_config
from deepinfer_gen.specs.source_text import read_source

_SHARDS = 3
# Standard deviation of the stored codes: what a scale has to bring to the wanted one.
_E4M3_CODES = 32.0
_E2M1_CODES = 2.9
_ZERO_EXPONENT = 127


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint must hold under ``name``; ``dtype`` is safetensors' name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def write_checkpoint(folder: Path, model: RandomModel, seed: int) -> ModelConfig:
    """Write config.json, tokenizer.json, shards and their index; returns the configuration as the product reads it.

    Weights have a standard deviation of 1 over the root of their input width, so that activations stay near 1 through
    any number of layers; scales differ from tile to tile by up to a factor of 4.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(model.tokenizer.content), encoding="utf-8")
    config = read_model_config(read_source(folder / "config.json", "config.json", MAX_CONFIG_BYTES, "the config"), "")
    generator = torch.Generator().manual_seed(seed)
    specs = {
        tensor.name: Stored(tensor.name, tensor.spec.dtype, tensor.spec.shape) for tensor in demanded_tensors(config)
    }
    shards: list[dict[str, Tensor]] = [{} for _ in range(_SHARDS)]
    for place, spec in enumerate(specs.values()):
        shards[place * _SHARDS // len(specs)][spec.name] = random_tensor(spec, specs, generator)
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{_SHARDS:05}.safetensors"
        save_file(tensors, folder / name)
        index |= dict.fromkeys(tensors, name)
    total = sum(tensor.nbytes for tensors in shards for tensor in tensors.values())
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
    return config


def random_tensor(spec: Stored, specs: dict[str, Stored], generator: Generator) -> Tensor:
    """One stored tensor; ``specs`` has the weight that a scale belongs to."""
    match spec.dtype:
        case "F8_E4M3":
            return (_normal(spec, generator) * _E4M3_CODES).to(torch.float8_e4m3fn)
        case "I8":
            return torch.randint(-128, 128, spec.shape, generator=generator, dtype=torch.int8)
        case "F8_E8M0":
            return _exponents(spec, specs[f"{spec.name.removesuffix('scale')}weight"], generator)
        case "BF16":
            return _plain(spec, generator).to(torch.bfloat16)
        case "F32":
            return _plain(spec, generator)
        case dtype:
            raise ValueError(f"{spec.name}: no values for the type {dtype}")


def _exponents(spec: Stored, weight: Stored, generator: Generator) -> Tensor:
    """Power-of-two scales as exponent bytes."""
    packed = weight.dtype == "I8"
    width = weight.shape[1] * (2 if packed else 1)
    # Rows of a table are looked up, not summed over.
    wanted = 1.0 if weight.name.endswith("engram.embed.weight") else width**-0.5
    exponent = _ZERO_EXPONENT + round(math.log2(wanted / (_E2M1_CODES if packed else _E4M3_CODES)))
    stored = torch.randint(exponent - 1, exponent + 2, spec.shape, generator=generator, dtype=torch.uint8)
    return stored.view(torch.float8_e8m0fnu)


def _plain(spec: Stored, generator: Generator) -> Tensor:
    noise = _normal(spec, generator)
    for ending, shape_values in _PLAIN:
        if spec.name.endswith(ending):
            return shape_values(noise)
    return noise / math.sqrt(spec.shape[-1])


_PLAIN: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("norm.weight", lambda noise: 1 + 0.2 * noise),
    ("engram.q_weight", lambda noise: 1 + 0.2 * noise),
    ("engram.k_weight", lambda noise: 1 + 0.2 * noise),
    ("embed.weight", lambda noise: noise),
    ("attn_sink", lambda noise: noise),
    ("_base", lambda noise: 0.5 * noise),
    ("_scale", lambda noise: 1 + 0.2 * noise),
    # Spread enough to decide some choices, and far from the text bias where it must not be used.
    ("gate.bias", lambda noise: 0.2 * noise),
    ("gate.bias_vl", lambda noise: 5 * noise),
)


def _normal(spec: Stored, generator: Generator) -> Tensor:
    return torch.randn(spec.shape, generator=generator)
