"""Model configs: the presets' values, exact numbers, sources. Expected values are those of the released config."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tiny_spec import TINY_SPEC

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.json_marks import read_json
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.model_config import ModelConfig, read_model_config
from deepinfer_gen.specs.model_keys import KEYS
from deepinfer_gen.specs.presets import preset_folder, presets
from deepinfer_gen.specs.resolve import resolve
from deepinfer_gen.specs.source_text import Place, SourceText, read_source


def preset(name: str) -> ModelConfig:
    return read_model_config(read_source(preset_folder(name) / "config.json", name, 10**6, "config"), name)


def test_flash() -> None:
    config = preset("deepseek-v4.1-flash")
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (40, 5120, 129280)
    assert config.rms_norm_eps == Fraction(1, 10**20)
    assert config.hc_eps == Fraction(1, 10**6)
    assert config.routed_scaling_factor == Fraction(3, 2)
    assert config.swiglu_limit == 10
    assert config.compress_ratios == (0, 0) + (2,) * 18 + (1,) * 20 + (0,) * 3
    assert config.index_source_layer_ids == (2, 8, 14, 20, 24, 28, 32, 36)
    assert config.engram_num_embeddings == (384006168, 384016682)
    assert config.rope_scaling.original_max_position_embeddings == 65536
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.image_token_id) == (0, 1, 2, 129264)
    assert (config.weight_block_size, config.scale_fmt, config.expert_dtype) == ((32, 32), "ue8m0", "fp4")


def test_tiny_is_the_checkpoints_own_config() -> None:
    config = preset("tiny-v41")
    raw = json.loads((preset_folder("tiny-v41") / "config.json").read_text())
    for name, key in KEYS.items():
        value = raw
        for part in key.path.split("."):
            value = value[part]
        exact = config.value(name)
        if isinstance(value, float):
            assert float(exact) == value
        else:
            assert exact == (tuple(value) if isinstance(value, list) else value)
    for shard in json.loads((preset_folder("tiny-v41") / "model.safetensors.index.json").read_text())[
        "weight_map"
    ].values():
        assert (preset_folder("tiny-v41") / shard).is_file()


PRESETS = {
    "deepseek-v4.1-flash": {
        "config.json": "51c1ee5149d76b661acb30f8b55c3b072c1a3aea3e10cd8c68e6fc7c0c201ec3",
    },
    "tiny-v41": {
        "config.json": "90d55a40e564f4970067d3b1e96bffe1f9de37fd42e6ca84407d012a856986ce",
        "model-00001-of-00003.safetensors": "b4ccbaddb95ba3b80d7933023408d639fd5f1d0b149c941b8798f4c29ca8350a",
        "model-00002-of-00003.safetensors": "6e11b24f66039aad5e1e74ece54dfb84a54a90975d2cf855be51a69c857e612c",
        "model-00003-of-00003.safetensors": "f87d6a4cd439b82b8e6ca36fb12e4a5f58598bf0c06e51d6039abd6eb7cca340",
        "model.safetensors.index.json": "aafae272cabc070c2aeb72bd98d869af44a052efea7f093905823f2d28a78a1b",
        "tokenizer.json": "e52d6dd1e0df70b9c2acd36e89096d85682b66308d0797fc3cf812dc630a1afa",
        "tokenizer_config.json": "0c782765b743524067f830ce03af15f322c93dbaa53e42315fd43917a7d61a71",
    },
    "tiny-v41-code": {
        "LICENSE.python": "3b2f81fe21d181c499c59a256c8e1968455d6689d269aa85373bfb6af41da3bf",
        "NOTICE": "baabda51a9dd99a1a2d1cebb1bbbfe14b28d30f90d5094ffec83a3c1b5daf9af",
        "confidence_temperatures.json": "a66cd3fba5375d650ed5c72547d4f3ddebfed565779b966427dadd255a147251",
        "config.json": "ea3079537c0c7e412939d926b826d8169048ecc5fca7fc975af0f1abc62fa9d6",
        "model-00001-of-00001.safetensors": "3a387fac7c824f127010b78d13e8a987770233043d2ead7f9300af627dfc747c",
        "model.safetensors.index.json": "a78f6985317a9d92262a6d8485e8b5c9cff56dd440bde08e40e69e5662bc92f0",
        "tokenizer.json": "f7263d00035c6163ae40ba03492e8a3415aafcfc445d9dd77c099142b16cf527",
        "tokenizer_config.json": "48ce2efd9b208d324b6b985b60fa50e215d3bf141e93ffedd02ac3fa7aa8c18d",
    },
}
"""sha256 of every file of a released preset. It never changes; another model gets another name."""


def test_a_preset_is_released_with_its_weights() -> None:
    assert {name for name, folder in presets().items() if any(folder.glob("*.safetensors"))} <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_immutable(name: str) -> None:
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in preset_folder(name).iterdir()}
    assert files == PRESETS[name]


def test_sources_and_settings() -> None:
    config = preset("tiny-v41")
    assert config.sources["head_dim"] == "config.json: text_config.head_dim"
    assert config.sources["expert_dtype"] == "config.json: quantization_config.expert_dtype"
    settings = config.settings()
    assert settings["rope_scaling.factor"].source == "config.json: text_config.rope_scaling.factor"
    assert settings["sliding_window"].unit == "tokens"
    assert all(setting.why for setting in settings.values())


def test_integral_decimals_are_integers(tmp_path: Path) -> None:
    text = (preset_folder("tiny-v41") / "config.json").read_text().replace('"rope_theta": 10000', '"rope_theta": 1.0e4')
    config = read_model_config(SourceText("x", "config.json", text), "")
    assert config.rope_theta == 10000
    assert isinstance(config.rope_theta, int)


def test_json_places() -> None:
    source = SourceText("x", "x", '{"a": {"b": [1, {"b": 2}],\n  "c": "}{"},\n "d": 1.50}')
    tree = read_json(source)
    assert tree.content["d"] == Fraction(3, 2)
    assert tree.place("a.b") == Place(1, 13)
    assert tree.place("a.c") == Place(2, 8)
    assert tree.place("d") == Place(3, 7)
    assert tree.place("nowhere") == Place()


@pytest.mark.parametrize(
    "text", ["", "[", "{", '{"a"', '{"a": }', "nul", '{"a": 1e}', '{"a": -}', "}" * 50, '{"a":1}x']
)
def test_broken_json(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_json(SourceText("x", "x", text))
    assert [d.code for d in caught.value.diagnostics] == ["DI061"]


def test_a_text_without_its_end_is_refused_in_linear_time() -> None:
    started = time.process_time()
    with pytest.raises(InputError, match="DI061"):
        read_json(SourceText("x", "x", '{"a": "' + '\\"' * 120_000))
    assert time.process_time() - started < 2


def test_a_key_with_a_dot_is_not_taken_for_a_nested_one() -> None:
    tree = read_json(SourceText("x", "x", '{"a.b": 1, "a": {"b": 2}, "c.d": {"e": 3}}'))
    assert tree.offsets == {"a": 16, "a.b": 22}


def test_presets_resolve_from_any_spec() -> None:
    assert resolve(load_spec(TINY_SPEC)).model.preset == "tiny-v41"
    with pytest.raises(KeyError):
        preset_folder("none")


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> ModelConfig:
    content = json.loads((preset_folder(name) / "config.json").read_text())
    change(content)
    return read_model_config(SourceText("x", "config.json", json.dumps(content, indent=1)), "")


def test_trap_26_text_keys_are_read_below_text_config() -> None:
    """The same name at the top level neither replaces nor completes them."""
    assert changed("tiny-v41", lambda c: c.update(hidden_size=999, num_hash_layers=3)).hidden_size == 128
    with pytest.raises(InputError, match=r"DI063.*text_config.hidden_size is missing"):
        changed("tiny-v41", lambda c: c.update(hidden_size=c["text_config"].pop("hidden_size")))
    with pytest.raises(InputError, match=r"DI063.*text_config is missing"):
        changed("tiny-v41", lambda c: c.update({**c.pop("text_config"), "model_type": "deepseek_v41"}))


def test_trap_26_no_key_counts_the_hash_layers() -> None:
    """The released config names the Engram layers; a reader that waits for a count of them finds none."""
    for name in presets():
        text = (preset_folder(name) / "config.json").read_text()
        assert "num_hash_layers" not in text
    assert "num_hash_layers" not in KEYS
    assert preset("deepseek-v4.1-flash").engram_layer_ids == (1, 14)


@pytest.mark.parametrize("kind", ["deepseek_v4", "deepseek_v41_text", "deepseek_v410", "DEEPSEEK_V41", 41])
def test_trap_26_the_model_type_is_compared_whole(kind: object) -> None:
    """deepseek_v41 begins with deepseek_v4, which is another model."""
    with pytest.raises(InputError, match="DI062"):
        changed("tiny-v41", lambda c: c.update(model_type=kind))


@pytest.mark.parametrize("tile", [[32, 32], [128, 128], [64, 32], [16, 48], [1, 128]])
def test_weight_tiles_of_any_sides(tile: list[int]) -> None:
    config = changed("tiny-v41", lambda c: c["quantization_config"].update(weight_block_size=tile))
    assert config.weight_block_size == tuple(tile)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("weight_block_size", [32], "DI085"),
        ("weight_block_size", [32, 0], "DI085"),
        ("weight_block_size", 32, "DI064"),
        ("weight_block_size", [32, "32"], "DI064"),
        ("expert_dtype", "fp8", "DI066"),
        ("expert_dtype", 4, "DI064"),
        ("scale_fmt", "fp32", "DI066"),
        ("quant_method", "gptq", "DI066"),
    ],
)
def test_what_is_no_format_of_the_weights(key: str, value: object, code: str) -> None:
    with pytest.raises(InputError, match=f"{code}.*quantization_config.{key}"):
        changed("tiny-v41", lambda c: c["quantization_config"].update({key: value}))
    with pytest.raises(InputError, match=f"DI063.*quantization_config.{key} is missing"):
        changed("tiny-v41", lambda c: c["quantization_config"].pop(key))
