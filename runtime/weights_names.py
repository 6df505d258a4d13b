"""The tensors that a checkpoint of the generated model must hold: released names, stored types and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan

# Tensors of the vision tower, not built: skipped and counted.
SKIPPED_PREFIXES = ("vision.", "aligner.", "image_")
DRAFT_PREFIX = "mtp."
# Columns that share one scale byte in MXFP4 experts and Engram rows (OCP MX specification 1.0).
_MX_GROUP = 32


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Stored type (safetensors' name) and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def expected_tensors(plan: ModelPlan, constants: Constants) -> dict[str, TensorSpec]:
    """Every tensor of backbone and draft layers by name, in the released order."""
    return dict(_Names(plan, constants).all())


class _Names:
    def __init__(self, plan: ModelPlan, constants: Constants) -> None:
        self.plan, self.c = plan, constants

    def all(self) -> Iterator[tuple[str, TensorSpec]]:
        c = self.c
        yield "embed.weight", _bf16(c.vocab_size, c.hidden_size)
        yield "head.weight", _bf16(c.vocab_size, c.hidden_size)
        yield "norm.weight", _bf16(c.hidden_size)
        # The draft layers are named and counted by the checkpoint, used or not.
        for layer in self.plan.layers:
            prefix = f"layers.{layer.index}"
            yield from self._block(prefix, c.n_routed_experts)
            yield from self._compressed(prefix, layer)
            if layer.engram:
                yield from self._engram(f"{prefix}.engram", layer.engram.rows)
        for index in range(c.n_mtp_layers_in_checkpoint):
            yield from self._block(f"mtp.{index}", c.dspark_n_routed_experts)
        yield from self._draft_globals()

    def _block(self, prefix: str, experts: int) -> Iterator[tuple[str, TensorSpec]]:
        """What every layer has: attention, experts, norms and hyper-connections."""
        c, attn = self.c, f"{prefix}.attn"
        heads = c.num_attention_heads * c.head_dim
        yield from self._fp8(f"{attn}.wq_a", c.q_lora_rank, c.hidden_size)
        yield from self._fp8(f"{attn}.wq_b", heads, c.q_lora_rank)
        yield from self._fp8(f"{attn}.wkv", c.head_dim, c.hidden_size)
        yield from self._fp8(f"{attn}.wo_a", c.o_groups * c.o_lora_rank, heads // c.o_groups)
        yield from self._fp8(f"{attn}.wo_b", c.hidden_size, c.o_groups * c.o_lora_rank)
        yield f"{attn}.attn_sink", _f32(c.num_attention_heads)
        yield f"{attn}.q_norm.weight", _bf16(c.q_lora_rank)
        yield f"{attn}.kv_norm.weight", _bf16(c.head_dim)
        for site in ("attn", "ffn"):
            coefficients = c.hc_mult * (c.hc_mult + 2)
            yield f"{prefix}.{site}_norm.weight", _bf16(c.hidden_size)
            yield f"{prefix}.hc_{site}_fn", _f32(coefficients, c.hc_mult * c.hidden_size)
            yield f"{prefix}.hc_{site}_base", _f32(coefficients)
            yield f"{prefix}.hc_{site}_scale", _f32(3)
        yield f"{prefix}.ffn.gate.weight", _bf16(experts, c.hidden_size)
        yield f"{prefix}.ffn.gate.bias", _f32(experts)
        yield f"{prefix}.ffn.gate.bias_vl", _f32(experts)
        inner = c.moe_intermediate_size
        for expert in range(experts):
            name = f"{prefix}.ffn.experts.{expert}"
            yield from _mxfp4(f"{name}.w1", inner, c.hidden_size)
            yield from _mxfp4(f"{name}.w3", inner, c.hidden_size)
            yield from _mxfp4(f"{name}.w2", c.hidden_size, inner)
        shared = c.n_shared_experts * inner
        yield from self._fp8(f"{prefix}.ffn.shared_experts.w1", shared, c.hidden_size)
        yield from self._fp8(f"{prefix}.ffn.shared_experts.w3", shared, c.hidden_size)
        yield from self._fp8(f"{prefix}.ffn.shared_experts.w2", c.hidden_size, shared)

    def _compressed(self, prefix: str, layer: LayerPlan) -> Iterator[tuple[str, TensorSpec]]:
        """Compressor and index keys of a KV source (a gate only where entries pool tokens); indexer of a source."""
        c = self.c
        if layer.kv_source == layer.index:
            yield f"{prefix}.attn.compressor.wkv.weight", _bf16(c.head_dim, c.hidden_size)
            yield f"{prefix}.attn.compressor.norm.weight", _bf16(c.head_dim)
            if layer.ca_state is not None:
                yield f"{prefix}.attn.compressor.wgate.weight", _bf16(c.head_dim, c.hidden_size)
            yield f"{prefix}.attn.indexer.wk.weight", _bf16(c.index_head_dim, c.head_dim)
            yield f"{prefix}.attn.indexer.k_norm.weight", _bf16(c.index_head_dim)
        if layer.index_source == layer.index:
            yield from self._fp8(f"{prefix}.attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
            yield f"{prefix}.attn.indexer.weights_proj.weight", _bf16(c.index_n_heads, c.hidden_size)

    def _engram(self, prefix: str, rows: int) -> Iterator[tuple[str, TensorSpec]]:
        c = self.c
        columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
        yield f"{prefix}.embed.weight", TensorSpec("F8_E4M3", (rows, c.engram_head_dim))
        yield f"{prefix}.embed.scale", TensorSpec("F8_E8M0", (rows, c.engram_head_dim // _MX_GROUP))
        yield from self._fp8(f"{prefix}.wkv", (c.hc_mult + 1) * c.hidden_size, columns * c.engram_head_dim)
        yield f"{prefix}.q_weight", _bf16(c.hc_mult, c.hidden_size)
        yield f"{prefix}.k_weight", _bf16(c.hc_mult, c.hidden_size)

    def _draft_globals(self) -> Iterator[tuple[str, TensorSpec]]:
        """Only the first draft layer projects target features; only the last has norm, Markov and confidence heads."""
        c = self.c
        if not c.n_mtp_layers_in_checkpoint:
            return
        last = f"mtp.{c.n_mtp_layers_in_checkpoint - 1}"
        yield from self._fp8("mtp.0.main_proj", c.hidden_size, c.dspark_num_target_layers * c.hidden_size)
        yield "mtp.0.main_norm.weight", _bf16(c.hidden_size)
        yield f"{last}.norm.weight", _bf16(c.hidden_size)
        yield f"{last}.markov_head.embed.weight", _bf16(c.vocab_size, c.dspark_markov_rank)
        yield f"{last}.markov_head.head.weight", _bf16(c.vocab_size, c.dspark_markov_rank)
        yield f"{last}.confidence_head.proj.weight", _bf16(1, c.hidden_size + c.dspark_markov_rank)

    def _fp8(self, name: str, rows: int, columns: int) -> Iterator[tuple[str, TensorSpec]]:
        tile = self.c.weight_tile
        yield f"{name}.weight", TensorSpec("F8_E4M3", (rows, columns))
        yield f"{name}.scale", TensorSpec("F8_E8M0", (-(-rows // tile), -(-columns // tile)))


def _mxfp4(name: str, rows: int, columns: int) -> Iterator[tuple[str, TensorSpec]]:
    yield f"{name}.weight", TensorSpec("I8", (rows, columns // 2))
    yield f"{name}.scale", TensorSpec("F8_E8M0", (rows, columns // _MX_GROUP))


def _bf16(*shape: int) -> TensorSpec:
    return TensorSpec("BF16", shape)


def _f32(*shape: int) -> TensorSpec:
    return TensorSpec("F32", shape)
