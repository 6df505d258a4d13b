"""The model's configuration as training reads it, and what the compiler derives from it for the Engram layers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class Sizes:
    """The fields of ``text_config`` by their released names, with ``bos_token_id`` and ``eos_token_id``."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.__dict__.update(config["text_config"])
        self.bos_token_id: int = config["bos_token_id"]
        self.eos_token_id: int = config["eos_token_id"]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"config.json has no text_config.{name}")

    def source_of(self, layer: int, sources: list[int]) -> int:
        """The latest of ``sources`` at or below ``layer``."""
        return max(s for s in sources if s <= layer)


@dataclass(frozen=True, slots=True)
class Hashes:
    """How an Engram layer finds its rows: int64 multipliers [n], primes and offsets [n - 1, heads]."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor


def read_sizes(path: Path) -> Sizes:
    return Sizes(json.loads(path.read_text(encoding="utf-8")))


def read_hashes(path: Path) -> tuple[Tensor, dict[int, Hashes]]:
    """The class of each token id [vocab_size], and the hashes of each Engram layer, as ``hash_tables`` wrote them."""
    tensors = load_file(path)
    layers = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("layers.")})
    parts = ("multipliers", "primes", "offsets")
    return tensors["token_map"], {i: Hashes(*(tensors[f"layers.{i}.{part}"] for part in parts)) for i in layers}


def matrix(*shape: int, gain: float = 1.0) -> torch.nn.Parameter:
    """A weight [..., rows, columns] whose products with unit rows have about unit size, times ``gain``."""
    return torch.nn.Parameter(torch.randn(*shape) * gain * shape[-1] ** -0.5)
