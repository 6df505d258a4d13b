"""The tensors a checkpoint must hold for a model config, in the released names, dtypes and scale layouts.

One table describes every parameter; ``demanded_tensors`` unrolls it, and the memory plan sums the same table with
traced formulas. Shapes are expressions over released config names, ``experts`` (of a gate) and ``rows`` (of a table).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from deepinfer_gen.formula import Value, ceil_div, evaluate, operand_names

if TYPE_CHECKING:
    from deepinfer_gen.specs.model_config import ModelConfig

MX_GROUP = 32
"""Columns that share one scale in the MX formats (experts and Engram tables)."""

ELEMENT_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the checkpoint; ``group`` is dense, experts, engram, draft_dense or draft_experts."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    group: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table. ``storage`` is bf16, f32, fp8 (tile scales), mxfp4 or mxfp8 (row-group scales).

    ``shape`` counts logical elements. A quantised parameter is stored as ``name.weight`` and ``name.scale``.
    """

    name: str
    storage: str
    shape: tuple[str, ...]


GLOBALS = (
    Parameter("embed.weight", "bf16", ("vocab_size", "hidden_size")),
    Parameter("head.weight", "bf16", ("vocab_size", "hidden_size")),
    Parameter("norm.weight", "bf16", ("hidden_size",)),
)
LAYER = (
    Parameter("attn.wq_a", "fp8", ("q_lora_rank", "hidden_size")),
    Parameter("attn.wq_b", "fp8", ("num_attention_heads * head_dim", "q_lora_rank")),
    Parameter("attn.wkv", "fp8", ("head_dim", "hidden_size")),
    Parameter("attn.wo_a", "fp8", ("o_groups * o_lora_rank", "num_attention_heads * head_dim // o_groups")),
    Parameter("attn.wo_b", "fp8", ("hidden_size", "o_groups * o_lora_rank")),
    Parameter("attn.attn_sink", "f32", ("num_attention_heads",)),
    Parameter("attn.q_norm.weight", "bf16", ("q_lora_rank",)),
    Parameter("attn.kv_norm.weight", "bf16", ("head_dim",)),
    Parameter("attn_norm.weight", "bf16", ("hidden_size",)),
    Parameter("ffn_norm.weight", "bf16", ("hidden_size",)),
    *(
        parameter
        for site in ("attn", "ffn")
        for parameter in (
            Parameter(f"hc_{site}_fn", "f32", ("hc_mult * (hc_mult + 2)", "hc_mult * hidden_size")),
            Parameter(f"hc_{site}_base", "f32", ("hc_mult * (hc_mult + 2)",)),
            Parameter(f"hc_{site}_scale", "f32", ("3",)),
        )
    ),
    Parameter("ffn.shared_experts.w1", "fp8", ("n_shared_experts * moe_intermediate_size", "hidden_size")),
    Parameter("ffn.shared_experts.w2", "fp8", ("hidden_size", "n_shared_experts * moe_intermediate_size")),
    Parameter("ffn.shared_experts.w3", "fp8", ("n_shared_experts * moe_intermediate_size", "hidden_size")),
)
GATE = (
    Parameter("ffn.gate.weight", "bf16", ("experts", "hidden_size")),
    Parameter("ffn.gate.bias", "f32", ("experts",)),
    Parameter("ffn.gate.bias_vl", "f32", ("experts",)),
)
KV_SOURCE = (
    Parameter("attn.compressor.wkv.weight", "bf16", ("head_dim", "hidden_size")),
    Parameter("attn.compressor.norm.weight", "bf16", ("head_dim",)),
    Parameter("attn.indexer.wk.weight", "bf16", ("index_head_dim", "head_dim")),
    Parameter("attn.indexer.k_norm.weight", "bf16", ("index_head_dim",)),
)
GATED_SOURCE = (Parameter("attn.compressor.wgate.weight", "bf16", ("head_dim", "hidden_size")),)
INDEX_SOURCE = (
    Parameter("attn.indexer.wq_b", "fp8", ("index_n_heads * index_head_dim", "q_lora_rank")),
    Parameter("attn.indexer.weights_proj.weight", "bf16", ("index_n_heads", "hidden_size")),
)
ENGRAM = (
    Parameter(
        "engram.wkv",
        "fp8",
        ("(hc_mult + 1) * hidden_size", "(engram_max_ngram_size - 1) * engram_n_heads * engram_head_dim"),
    ),
    Parameter("engram.q_weight", "bf16", ("hc_mult", "hidden_size")),
    Parameter("engram.k_weight", "bf16", ("hc_mult", "hidden_size")),
)
ENGRAM_TABLE = (Parameter("engram.embed", "mxfp8", ("rows", "engram_head_dim")),)
EXPERT = (
    Parameter("w1", "mxfp4", ("moe_intermediate_size", "hidden_size")),
    Parameter("w2", "mxfp4", ("hidden_size", "moe_intermediate_size")),
    Parameter("w3", "mxfp4", ("moe_intermediate_size", "hidden_size")),
)
DRAFT_FIRST = (
    Parameter("main_proj", "fp8", ("hidden_size", "count(dspark_target_layer_ids) * hidden_size")),
    Parameter("main_norm.weight", "bf16", ("hidden_size",)),
)
DRAFT_LAST = (
    Parameter("norm.weight", "bf16", ("hidden_size",)),
    Parameter("markov_head.embed.weight", "bf16", ("vocab_size", "dspark_markov_rank")),
    Parameter("markov_head.head.weight", "bf16", ("vocab_size", "dspark_markov_rank")),
    Parameter("confidence_head.proj.weight", "bf16", ("1", "hidden_size + dspark_markov_rank")),
)


def demanded_tensors(model: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of the text model, draft layers included, vision left out, in checkpoint order of the layers."""
    yield from _unroll(GLOBALS, "", "dense", model, {})
    tables = dict(zip(model.engram_layer_ids, model.engram_num_embeddings, strict=True))
    for layer in range(model.num_hidden_layers):
        prefix = f"layers.{layer}."
        yield from _unroll(LAYER, prefix, "dense", model, {})
        yield from _unroll(GATE, prefix, "dense", model, {"experts": model.n_routed_experts})
        if layer in model.kv_source_layer_ids:
            yield from _unroll(KV_SOURCE, prefix, "dense", model, {})
            if model.compress_ratios[layer] > 1:
                yield from _unroll(GATED_SOURCE, prefix, "dense", model, {})
        if layer in model.index_source_layer_ids:
            yield from _unroll(INDEX_SOURCE, prefix, "dense", model, {})
        if layer in tables:
            yield from _unroll(ENGRAM, prefix, "dense", model, {})
            yield from _unroll(ENGRAM_TABLE, prefix, "engram", model, {"rows": tables[layer]})
        yield from _experts(prefix, "experts", model.n_routed_experts, model)
    for index in range(model.num_nextn_predict_layers):
        prefix = f"mtp.{index}."
        yield from _unroll(LAYER, prefix, "draft_dense", model, {})
        yield from _unroll(GATE, prefix, "draft_dense", model, {"experts": model.dspark_n_routed_experts})
        if index == 0:
            yield from _unroll(DRAFT_FIRST, prefix, "draft_dense", model, {})
        if index == model.num_nextn_predict_layers - 1:
            yield from _unroll(DRAFT_LAST, prefix, "draft_dense", model, {})
        yield from _experts(prefix, "draft_experts", model.dspark_n_routed_experts, model)


def stored_tensors(
    parameter: Parameter, shape: tuple[int, ...], tile: tuple[int, int]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of each stored tensor of a parameter; ``shape`` counts its logical elements."""
    name = parameter.name
    match parameter.storage:
        case "bf16":
            yield name, "BF16", shape
        case "f32":
            yield name, "F32", shape
        case "fp8":
            yield f"{name}.weight", "F8_E4M3", shape
            yield f"{name}.scale", "F8_E8M0", (ceil_div(shape[0], tile[0]), ceil_div(shape[1], tile[1]))
        case "mxfp4":
            yield f"{name}.weight", "I8", (shape[0], shape[1] // 2)
            yield f"{name}.scale", "F8_E8M0", (shape[0], shape[1] // MX_GROUP)
        case "mxfp8":
            yield f"{name}.weight", "F8_E4M3", shape
            yield f"{name}.scale", "F8_E8M0", (shape[0], shape[1] // MX_GROUP)
        case storage:
            raise ValueError(f"parameter {name} has the unknown storage '{storage}'")


def bytes_formula(parameter: Parameter) -> str:
    """The stored size of a parameter as a formula over its shape's operands, ``tile_*`` and ``mx_group``."""
    factors = [f"({f})" if " " in f else f for f in parameter.shape]
    elements = " * ".join(factors)
    match parameter.storage:
        case "bf16":
            return f"2 * {elements}"
        case "f32":
            return f"4 * {elements}"
        case "fp8":
            rows, columns = parameter.shape
            return f"{elements} + ceil_div({rows}, tile_rows) * ceil_div({columns}, tile_columns)"
        case "mxfp4":
            return f"{elements} / 2 + {elements} / mx_group"
        case "mxfp8":
            return f"{elements} + {elements} / mx_group"
        case storage:
            raise ValueError(f"parameter {parameter.name} has the unknown storage '{storage}'")


def elements_formula(parameter: Parameter) -> str:
    """The logical element count of a parameter as a formula."""
    return " * ".join(f"({f})" if " " in f else f for f in parameter.shape)


def _shape(parameter: Parameter, model: ModelConfig, operands: Mapping[str, Value]) -> tuple[int, ...]:
    sizes: list[int] = []
    for expression in parameter.shape:
        names = operand_names(expression)
        value = evaluate(expression, {n: operands[n] if n in operands else getattr(model, n) for n in names})
        if not isinstance(value, int):
            raise ValueError(f"{parameter.name}: dimension '{expression}' is {value}, not a whole number")
        sizes.append(value)
    return tuple(sizes)


def _unroll(
    table: tuple[Parameter, ...], prefix: str, group: str, model: ModelConfig, operands: Mapping[str, Value]
) -> Iterator[TensorSpec]:
    rows, columns = model.weight_block_size
    for parameter in table:
        for name, dtype, shape in stored_tensors(parameter, _shape(parameter, model, operands), (rows, columns)):
            yield TensorSpec(prefix + name, dtype, shape, prod(shape) * ELEMENT_BYTES[dtype], group)


def _experts(prefix: str, group: str, count: int, model: ModelConfig) -> Iterator[TensorSpec]:
    """All experts of a layer; they are equal, so the table is evaluated once and renamed."""
    tensors = tuple(_unroll(EXPERT, "", group, model, {}))
    for expert in range(count):
        for tensor in tensors:
            yield TensorSpec(
                f"{prefix}ffn.experts.{expert}.{tensor.name}", tensor.dtype, tensor.shape, tensor.nbytes, group
            )
