"""Model configurations: the released Hugging Face ``config.json``, read exactly and checked whole.

Attributes carry the released names, so that a Plan key such as ``model.config.head_dim`` says where its value stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.formula import normalise
from deepinfer_gen.specs.folder_path import path_below, shown_below
from deepinfer_gen.specs.json_marks import JsonTree, read_json
from deepinfer_gen.specs.model_keys import KEYS, ConfigKey
from deepinfer_gen.specs.presets import presets
from deepinfer_gen.specs.resolved import Setting
from deepinfer_gen.specs.source_text import Place, SourceText, read_source
from deepinfer_gen.specs.validate import did_you_mean, in_file_order, quoted
from deepinfer_gen.specs.yaml_tree import KeyPlace

MAX_CONFIG_BYTES = 256 * 1024
MODEL_TYPE = "deepseek_v41"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Frequency-only YaRN of the layers with compressed KV."""

    rope_type: str
    factor: int
    beta_fast: int
    beta_slow: int
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A checked model configuration. ``sources`` says for every attribute where in the file it stands."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hidden_act: str
    attention_bias: bool
    tie_word_embeddings: bool
    rms_norm_eps: int | Fraction
    max_position_embeddings: int
    rope_theta: int
    compress_rope_theta: int
    rope_scaling: RopeScaling
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: int | Fraction
    swiglu_limit: int | Fraction
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: int | Fraction
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    quant_method: str
    weight_block_size: tuple[int, ...]
    scale_fmt: str
    expert_dtype: str
    file: str
    preset: str
    sources: Mapping[str, str]

    def settings(self) -> dict[str, Setting]:
        """Every value with unit, source and meaning, by attribute (``rope_scaling.factor`` for the nested ones)."""
        return {
            name: Setting(normalise(self.value(name)), self.sources[name], key.why, key.unit)
            for name, key in KEYS.items()
        }

    def value(self, name: str) -> Any:
        """The value of the attribute ``name``, dotted for the nested ones."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
        return value


def load_model_config(written: str, folder: Path, at: KeyPlace, spec_shown: str) -> ModelConfig:
    """The configuration that ``model: written`` names: a preset, or a ``config.json`` below ``folder``.

    Raises ``InputError``: DI019 (no such preset or file), DI018 (path), or all faults of the configuration.
    """
    if written in presets():
        path = presets()[written] / "config.json"
        return read_model_config(
            read_source(path, f"{written}/config.json", MAX_CONFIG_BYTES, "the model config"), written
        )
    if not written.endswith(".json"):
        remedy = did_you_mean(written, presets(), "there are these presets, or name a config.json")
        raise InputError(at.error("DI019", f"model is '{written}', which is no preset", remedy))
    path = path_below(folder, written, "model", at)
    if not os.path.isfile(path):  # also False for a name that the file system cannot hold
        message = f"model is '{written}', and there is no such file"
        raise InputError(at.error("DI019", message, "the path is relative to the spec's folder"))
    return read_model_config(
        read_source(path, shown_below(spec_shown, written), MAX_CONFIG_BYTES, "the model config"), ""
    )


def read_model_config(source: SourceText, preset: str) -> ModelConfig:
    """Read and check one configuration; raises ``InputError`` with all its faults (DI061 to DI089)."""
    from deepinfer_gen.specs.model_rules import check_config

    tree = read_json(source)
    if tree.content.get("model_type") != MODEL_TYPE:
        message = f"model_type is {quoted(tree.content.get('model_type'))}; only '{MODEL_TYPE}' is supported"
        raise InputError(source.error("DI062", message, tree.place("model_type"), "name a DeepSeek-V4.1 config.json"))
    values: dict[str, Any] = {}
    faults: list[Diagnostic] = []
    for name, key in KEYS.items():
        value = _read(tree, key, faults)
        if value is not None:
            values[name] = value
    faults += check_config(values, tree)
    if faults:
        raise InputError(in_file_order(faults))
    nested = {f.name: values.pop(f"rope_scaling.{f.name}") for f in fields(RopeScaling)}
    sources = {name: f"{source.base}: {key.path}" for name, key in KEYS.items()}
    return ModelConfig(**values, rope_scaling=RopeScaling(**nested), file=source.base, preset=preset, sources=sources)


def _read(tree: JsonTree, key: ConfigKey, faults: list[Diagnostic]) -> Any:
    """The value of one key, or ``None`` after noting what is wrong with it."""
    value: Any = tree.content
    walked: list[str] = []
    for part in key.path.split("."):
        parent = ".".join(walked)
        walked.append(part)
        place = tree.place(parent) if parent else Place(1, 1)
        if not isinstance(value, dict):
            faults.append(tree.source.error("DI064", f"{parent} is no JSON object", place, "nest its keys as released"))
            return None
        if part not in value:
            missing = ".".join(walked)
            message = f"{missing} is missing" + (f": {key.why}" if missing == key.path else "")
            faults.append(tree.source.error("DI063", message, place, "add it"))
            return None
        value = value[part]
    fault = key.fault(value)
    if fault:
        code, sentence = fault
        message = f"{key.path} is {quoted(value)}; it must be {sentence}"
        faults.append(tree.source.error(code, message, tree.place(key.path), f"{key.path}: {key.why}"))
        return None
    return tuple(value) if isinstance(value, list) else normalise(value)
