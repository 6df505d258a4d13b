"""Resolved specs built by hand, so that these tests need neither YAML nor the rules of ``resolve``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from deepinfer_gen.formula import Value
from deepinfer_gen.specs.hardware_table import HardwareTable, read_hardware
from deepinfer_gen.specs.model_config import ModelConfig, read_model_config
from deepinfer_gen.specs.presets import hardware_tables, presets
from deepinfer_gen.specs.resolved import Resolved, Setting
from deepinfer_gen.specs.source_text import read_source

Make = Callable[..., Resolved]

# The setting of DESIGN's table: released formats, nextn 5, 128 sequences, blocks of 128 tokens.
SETTINGS: dict[str, Value] = {
    "engine.name": "case",
    "engine.type": "NORMAL",
    "model": "deepseek-v4.1-flash",
    "hardware": "sm100",
    "parallel.dp": 8,
    "parallel.ep": 8,
    "parallel.cp": 1,
    "parallel.dispatch": "ragged",
    "parallel.engram_placement": "sharded",
    "limits.max_num_seqs": 128,
    "limits.max_model_len": 65536,
    "limits.max_num_batched_tokens": 8192,
    "limits.max_num_prompts": 16,
    "kv.block_size": 128,
    "kv.num_blocks": "auto",
    "kv.main_format": "nvfp4_g16",
    "kv.index_format": "mxfp4_g32",
    "kv.swa_format": "mxfp8_g32",
    "kv.row_layout": "interleaved",
    "state.slots_ratio": Fraction(6, 5),
    "speculative.nextn": 5,
    "speculative.max_backtracking_tokens": 6,
    "graphs.batch_size_interval": 8,
    "eplb.min_redundant_per_rank": 1,
    "determinism.batch_invariant": False,
    "numerics.policy": "released",
}


def read_model(preset: str) -> ModelConfig:
    path = presets()[preset] / "config.json"
    return read_model_config(read_source(path, f"{preset}/config.json", 2**20, "the model config"), preset)


def read_table(name: str) -> HardwareTable:
    return read_hardware(read_source(hardware_tables()[name], f"{name}.yaml", 2**20, "the hardware table"))


@pytest.fixture(scope="session")
def released() -> ModelConfig:
    return read_model("deepseek-v4.1-flash")


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    return read_model("tiny-v41")


@pytest.fixture(scope="session")
def make(released: ModelConfig) -> Make:
    """``make({"speculative.nextn": 0}, hardware="cpu")``; ``None`` removes a key; sources say line 7, column 3."""

    def build(
        changes: dict[str, Value] | None = None,
        *,
        model: ModelConfig = released,
        hardware: HardwareTable | str = "sm100",
    ) -> Resolved:
        values = SETTINGS | (changes or {})
        settings = {
            key: Setting(value, "case.yaml:7:3" if key in (changes or {}) else "default", "why")
            for key, value in values.items()
            if value is not None
        }
        table = read_table(hardware) if isinstance(hardware, str) else hardware
        return Resolved("case", "case.yaml", settings, model, table)

    return build


@pytest.fixture(scope="session")
def enlarged() -> Callable[[str, int], HardwareTable]:
    """A shipped hardware table with another memory size."""

    def build(name: str, memory_bytes: int) -> HardwareTable:
        table = read_table(name)
        memory = replace(table.settings["memory_bytes"], value=memory_bytes)
        return replace(table, memory_bytes=memory_bytes, settings={**table.settings, "memory_bytes": memory})

    return build
