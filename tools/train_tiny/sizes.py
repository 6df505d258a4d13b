"""The model's configuration as training reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


class Sizes:
    """The fields of ``text_config`` by their released names, with ``bos_token_id``, ``eos_token_id`` and
    ``weight_block_size``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.__dict__.update(config["text_config"])
        self.bos_token_id: int = config["bos_token_id"]
        self.eos_token_id: int = config["eos_token_id"]
        self.weight_block_size: list[int] = config["quantization_config"]["weight_block_size"]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"config.json has no text_config.{name}")

    def source_of(self, layer: int, sources: list[int]) -> int:
        """The latest of ``sources`` at or below ``layer``."""
        return max(s for s in sources if s <= layer)


def read_sizes(path: Path) -> Sizes:
    """The sizes of a config.json. ``OSError``, ``ValueError`` or ``KeyError`` for a file that is none."""
    return Sizes(json.loads(path.read_text(encoding="utf-8")))


def matrix(*shape: int, gain: float = 1.0) -> torch.nn.Parameter:
    """A weight [..., rows, columns] whose products with unit rows have about unit size, times ``gain``."""
    return torch.nn.Parameter(torch.randn(*shape) * gain * shape[-1] ** -0.5)
