"""The files of a checkpoint folder beside its tensors: another model's config, and text that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_spec import tiny_plan

from deepinfer_gen.codegen.render import render
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.checkpoint_config import check_config
from deepinfer_gen.runtime.generation_config import default_sampling_params
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

PRESET = preset_folder("tiny-v41")
DEEP = "[" * 100_000


@pytest.fixture
def values() -> Any:
    return json.loads(render(tiny_plan())["plan.json"])["values"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PRESET / name, tmp_path / name)
    return tmp_path


def test_the_presets_own_config_agrees_and_a_missing_one_is_not_asked_for(folder: Path, values: Any) -> None:
    check_config(folder, values)
    (folder / "config.json").unlink()
    check_config(folder, values)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rope_theta", 20000, "text_config.rope_theta is 20000, and the engine was compiled for 10000"),
        ("hc_eps", 2e-6, "text_config.hc_eps is 1/500000, and the engine was compiled for '1/1000000'"),
        ("norm_topk_prob", 1, "text_config.norm_topk_prob is 1, and"),
        ("num_experts_per_tok", None, "text_config.num_experts_per_tok is missing, and"),
        ("index_source_layer_ids", [2], "text_config.index_source_layer_ids is [2], and"),
    ],
)
def test_another_models_config_is_refused_by_key(folder: Path, values: Any, key: str, value: Any, said: str) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"][key] = value
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        check_config(folder, values)
    (fault,) = caught.value.diagnostics
    assert fault.code == "DI360"
    assert said in fault.message


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("weight_block_size", [128, 128], "quantization_config.weight_block_size is [128, 128], and the engine was"),
        ("expert_dtype", "fp8", "quantization_config.expert_dtype is 'fp8', and the engine was compiled for 'fp4'"),
        ("scale_fmt", None, "quantization_config.scale_fmt is missing, and the engine was compiled for 'ue8m0'"),
    ],
)
def test_weights_of_another_format_are_refused(folder: Path, values: Any, key: str, value: Any, said: str) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"][key] = value
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        check_config(folder, values)
    (fault,) = caught.value.diagnostics
    assert fault.code == "DI360"
    assert said in fault.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", DEEP.encode(), "nested too deeply"),
        ("tokenizer_config.json", b"\xff", "cannot be read"),
        ("tokenizer_config.json", b"[]", "no JSON object"),
        ("tokenizer.json", b"{}", "cannot be read"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("generation_config.json", DEEP.encode(), "nested too deeply"),
        ("generation_config.json", b"[]", "no JSON object"),
        ("generation_config.json", b'{"temperature": "x"}', "temperature must be"),
        ("config.json", b"x", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_a_remedy(
    folder: Path, values: Any, name: str, content: bytes, said: str
) -> None:
    def read_all() -> None:
        check_config(folder, values)
        default_sampling_params(folder)
        Tokenizer(folder)

    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_all()
    (fault,) = caught.value.diagnostics
    assert Path(fault.file).name == name
    assert fault.help
