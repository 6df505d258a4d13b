from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_plan

from deepinfer_gen import LLM
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.checkpoint_config import check_config
from deepinfer_gen.specs.presets import preset_folder

VALUES = shipped_plan("tiny-cpu").as_dict()["values"]


def changed(folder: Path, section: str, key: str, value: Any) -> Path:
    config = json.loads((preset_folder("tiny-v41") / "config.json").read_text())
    (config[section] if section else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_checkpoint_of_the_preset_agrees(tmp_path: Path) -> None:
    check_config(preset_folder("tiny-v41"), VALUES, "tiny-cpu")
    check_config(changed(tmp_path, "text_config", "rope_theta", 10000.0), VALUES, "tiny-cpu")


def test_a_folder_without_config_has_nothing_to_compare(tmp_path: Path) -> None:
    check_config(tmp_path, VALUES, "tiny-cpu")


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("text_config", "num_experts_per_tok", 1, "num_experts_per_tok is 1, and engine 'tiny-cpu' is compiled for 3"),
        ("text_config", "rms_norm_eps", 1e-6, "rms_norm_eps is 1e-06, and engine 'tiny-cpu' is compiled for 1e-20"),
        ("text_config", "engram_layer_ids", [1], r"is \[1\], and engine 'tiny-cpu' is compiled for \[1, 4\]"),
        ("text_config", "norm_topk_prob", None, "norm_topk_prob is missing"),
        ("quantization_config", "expert_dtype", "fp8", 'quantization_config.expert_dtype is "fp8"'),
        ("", "eos_token_id", 403, "^[^:]*config.json: error.DI306.: eos_token_id is 403"),
    ],
)
def test_every_difference_is_named(tmp_path: Path, section: str, key: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_config(changed(tmp_path, section, key, value), VALUES, "tiny-cpu")


def test_an_unreadable_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="DI307"):
        check_config(tmp_path, VALUES, "tiny-cpu")


def test_an_engine_refuses_another_models_checkpoint(tiny_engine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(preset_folder("tiny-v41"), folder)
    changed(folder, "text_config", "num_experts_per_tok", 1)
    with pytest.raises(InputError, match="num_experts_per_tok"):
        LLM(folder, engine=tiny_engine)
