"""The tensors of a checkpoint: one table of released names, stored types and shapes.

The compiler sums it with traced formulas and lists it for a config; the runtime checks files against it. Shapes are
expressions over released config names and a few operands of their own: ``experts`` (of a gate), ``rows`` (of an Engram
table), ``target_layers`` (whose features the drafts read), ``tile_rows`` and ``tile_columns`` (of one weight scale).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from deepinfer_gen.formula import Value, ceil_div, evaluate, operand_names

MX_GROUP = 32
"""Columns that share one scale byte in MXFP4 experts and Engram rows (OCP MX specification 1.0)."""

ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "U16": 2,
    "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""The types of the safetensors format that fill whole bytes; a checkpoint of this model holds five of them."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Stored type (safetensors' name) and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class DemandedTensor:
    """One tensor of the checkpoint.

    ``group`` is dense, experts, engram, draft_dense or draft_experts; ``expert`` numbers a routed expert in its layer.
    """

    name: str
    spec: TensorSpec
    group: str
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class DemandedParameter:
    """One parameter of the checkpoint in its logical ``shape``, whatever tensors store it.

    ``storage`` is that of its ``Parameter``; ``group`` and ``expert`` are those of its ``DemandedTensor``s.
    """

    name: str
    storage: str
    shape: tuple[int, ...]
    group: str
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What one backbone layer has beside what all have.

    A ``gated`` source pools tokens; ``engram_rows`` 0 means no table.
    """

    kv_source: bool
    gated: bool
    index_source: bool
    engram_rows: int


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
    Parameter("main_proj", "fp8", ("hidden_size", "target_layers * hidden_size")),
    Parameter("main_norm.weight", "bf16", ("hidden_size",)),
)
DRAFT_LAST = (
    Parameter("norm.weight", "bf16", ("hidden_size",)),
    Parameter("markov_head.embed.weight", "bf16", ("vocab_size", "dspark_markov_rank")),
    Parameter("markov_head.head.weight", "bf16", ("vocab_size", "dspark_markov_rank")),
    Parameter("confidence_head.proj.weight", "bf16", ("1", "hidden_size + dspark_markov_rank")),
)


_EXPERT_PREFIX = "ffn.experts"


def unroll(layers: Sequence[LayerParts], draft_layers: int, operands: Mapping[str, Value]) -> Iterator[DemandedTensor]:
    """Every tensor of the text model, draft layers included, vision left out, layer by layer.

    ``operands`` gives the released config names, ``tile_rows``, ``tile_columns`` and ``target_layers``.
    """
    tile = _whole("tile_rows", operands), _whole("tile_columns", operands)
    for parameter in unroll_parameters(layers, draft_layers, operands):
        for name, spec in stored_tensors(parameter, tile):
            yield DemandedTensor(name, spec, parameter.group, parameter.expert)


def unroll_parameters(
    layers: Sequence[LayerParts], draft_layers: int, operands: Mapping[str, Value]
) -> Iterator[DemandedParameter]:
    """Every parameter of the text model, in the order of ``unroll``, whose ``operands`` these are."""
    yield from _unroll(GLOBALS, "", "dense", operands)
    backbone = {**operands, "experts": operands["n_routed_experts"]}
    for layer, parts in enumerate(layers):
        prefix = f"layers.{layer}."
        yield from _unroll(LAYER + GATE, prefix, "dense", backbone)
        if parts.kv_source:
            yield from _unroll(KV_SOURCE, prefix, "dense", operands)
        if parts.gated:
            yield from _unroll(GATED_SOURCE, prefix, "dense", operands)
        if parts.index_source:
            yield from _unroll(INDEX_SOURCE, prefix, "dense", operands)
        if parts.engram_rows:
            yield from _unroll(ENGRAM, prefix, "dense", operands)
            yield from _unroll(ENGRAM_TABLE, prefix, "engram", {**operands, "rows": parts.engram_rows})
        yield from _experts(prefix, "experts", backbone)
    drafts = {**operands, "experts": operands["dspark_n_routed_experts"]}
    for index in range(draft_layers):
        prefix = f"mtp.{index}."
        yield from _unroll(LAYER + GATE, prefix, "draft_dense", drafts)
        if index == 0:
            yield from _unroll(DRAFT_FIRST, prefix, "draft_dense", operands)
        if index == draft_layers - 1:
            yield from _unroll(DRAFT_LAST, prefix, "draft_dense", operands)
        yield from _experts(prefix, "draft_experts", drafts)


def stored_tensors(parameter: DemandedParameter, tile: tuple[int, int]) -> Iterator[tuple[str, TensorSpec]]:
    """Name, type and shape of each tensor that stores a parameter: its values, then their scales if it has any.

    ``tile`` is the rows and columns of a dense weight that share one scale byte.
    """
    name, shape = parameter.name, parameter.shape
    match parameter.storage:
        case "bf16":
            yield name, TensorSpec("BF16", shape)
        case "f32":
            yield name, TensorSpec("F32", shape)
        case "fp8":
            yield f"{name}.weight", TensorSpec("F8_E4M3", shape)
            yield f"{name}.scale", TensorSpec("F8_E8M0", (ceil_div(shape[0], tile[0]), ceil_div(shape[1], tile[1])))
        case "mxfp4":
            yield f"{name}.weight", TensorSpec("I8", (shape[0], shape[1] // 2))
            yield f"{name}.scale", TensorSpec("F8_E8M0", (shape[0], shape[1] // MX_GROUP))
        case "mxfp8":
            yield f"{name}.weight", TensorSpec("F8_E4M3", shape)
            yield f"{name}.scale", TensorSpec("F8_E8M0", (shape[0], shape[1] // MX_GROUP))
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


def _unroll(
    table: tuple[Parameter, ...], prefix: str, group: str, operands: Mapping[str, Value]
) -> Iterator[DemandedParameter]:
    for parameter in table:
        yield DemandedParameter(prefix + parameter.name, parameter.storage, _shape(parameter, operands), group)


def _experts(prefix: str, group: str, operands: Mapping[str, Value]) -> Iterator[DemandedParameter]:
    """All experts of a layer; they are equal, so the table is evaluated once and renamed."""
    shapes = [_shape(parameter, operands) for parameter in EXPERT]
    for expert in range(_whole("experts", operands)):
        for parameter, shape in zip(EXPERT, shapes, strict=True):
            name = f"{prefix}{_EXPERT_PREFIX}.{expert}.{parameter.name}"
            yield DemandedParameter(name, parameter.storage, shape, group, expert)


def _shape(parameter: Parameter, operands: Mapping[str, Value]) -> tuple[int, ...]:
    return tuple(_whole(expression, operands) for expression in parameter.shape)


def _whole(expression: str, operands: Mapping[str, Value]) -> int:
    value = evaluate(expression, {name: operands[name] for name in operand_names(expression)})
    if not isinstance(value, int):
        raise ValueError(f"dimension '{expression}' is {value!r}, not a whole number")
    return value
