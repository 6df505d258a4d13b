"""Attention of one layer: a sliding window of its own rows plus entries of a shared compressed cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kernels.reference.sparse_attention import EntryRows, WindowRows
from deepinfer_gen.runtime.model.compressor import Compressor
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.indexer import Indexer, IndexKeys
from deepinfer_gen.runtime.model.rope import rotate_tail
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import Weights


class Attention(nn.Module):
    """One key-value row per position serves all query heads and is both key and value."""

    wq_a_wkv: Tensor
    wq_b: Tensor
    wo_a: Tensor
    wo_b: Tensor
    q_norm: Tensor
    kv_norm: Tensor
    sink: Tensor

    def __init__(self, weights: Weights, layer: LayerPlan, constants: Constants, operators: ReferenceOperators) -> None:
        super().__init__()
        prefix = f"layers.{layer.index}.attn"
        self.operators, self.layer, self.constants = operators, layer, constants
        wq_a, wkv = weights.decode(f"{prefix}.wq_a.weight"), weights.decode(f"{prefix}.wkv.weight")
        self.register_buffer("wq_a_wkv", torch.cat([wq_a, wkv]))
        self.register_buffer("wq_b", weights.decode(f"{prefix}.wq_b.weight"))
        self.register_buffer(
            "wo_a", weights.decode(f"{prefix}.wo_a.weight").view(constants.o_groups, constants.o_lora_rank, -1)
        )
        self.register_buffer("wo_b", weights.decode(f"{prefix}.wo_b.weight"))
        self.register_buffer("q_norm", weights.decode(f"{prefix}.q_norm.weight"))
        self.register_buffer("kv_norm", weights.decode(f"{prefix}.kv_norm.weight"))
        self.register_buffer("sink", weights.decode(f"{prefix}.attn_sink"))
        owns_kv = layer.kv_source == layer.index
        self.compressor = Compressor(weights, layer, constants, operators) if owns_kv else None
        self.index_keys = IndexKeys(weights, layer, constants, operators) if owns_kv else None
        self.indexer = Indexer(weights, layer, constants, operators) if layer.index_source == layer.index else None

    def forward(self, u: Tensor, step: StepContext) -> Tensor:
        """u [T, d] to [T, d]; stores this step's window rows, entries and index keys."""
        c, ops = self.constants, self.operators
        rotation = step.rotation(self.layer.rope)
        projected = ops.linear(u, self.wq_a_wkv)
        qr, kv = projected[:, : c.q_lora_rank], projected[:, c.q_lora_rank :]
        qr = rms_norm(qr, self.q_norm, c.rms_norm_eps)
        q = rotate_tail(ops.linear(qr, self.wq_b).view(-1, c.num_attention_heads, c.head_dim), rotation)
        kv = rotate_tail(rms_norm(kv, self.kv_norm, c.rms_norm_eps), rotation)
        entries = self._entries(u, qr, step)

        ring = step.cache.slot_rows(self.layer.swa)
        index = step.ring(ring, c.sliding_window - 1)
        stored = ring.codec.encode(kv)
        # Earlier steps' rows are read before this step's rows take their places in the ring.
        window = WindowRows(ring.read_with(index.ring_offsets, stored), index.pool, index.valid)
        out = ops.sparse_attention(q, window, entries, self.sink, scale=c.head_dim**-0.5)
        ops.kv_scatter(ring, index.write_slot, index.write_row, stored.index_select(0, index.write_tokens))
        grouped = rotate_tail(out, step.inverse_rotation(self.layer.rope)).view(out.shape[0], c.o_groups, -1)
        return ops.linear(ops.grouped_linear(grouped, self.wo_a), self.wo_b)

    def _entries(self, u: Tensor, qr: Tensor, step: StepContext) -> EntryRows | None:
        """Complete and choose compressed entries as this layer's roles say; none at ratio 0."""
        layer = self.layer
        if layer.main is None or layer.index_keys is None or layer.index_source is None:
            return None
        main, keys = step.cache.block_rows(layer.main), step.cache.block_rows(layer.index_keys)
        if self.compressor is not None and self.index_keys is not None:
            self.index_keys(self.compressor(u, main, step), keys, step)
        if self.indexer is not None:
            step.publish(layer.index, main, self.indexer(u, qr, keys, step))
        return step.selections[layer.index_source].rows(main)
