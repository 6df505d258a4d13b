"""Attention of one layer: a sliding window of its own rows plus entries of a shared compressed cache."""

from __future__ import annotations

from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kernels.reference.sparse_attention import EntryRows, WindowRows
from deepinfer_gen.runtime.model.compressor import Compressor
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.indexer import Indexer, IndexKeys
from deepinfer_gen.runtime.model.rope import rotate_tail
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import TensorSource


class Attention(nn.Module):
    """One key-value row per position serves all query heads and is both key and value."""

    q_norm: Tensor
    kv_norm: Tensor
    sink: Tensor

    def __init__(self, source: TensorSource, layer: LayerPlan, constants: Constants, operators: Operators) -> None:
        super().__init__()
        prefix = f"{layer.prefix}.attn"
        self.operators, self.layer, self.constants = operators, layer, constants
        self.wq_a, self.wq_b = Matrix(source, f"{prefix}.wq_a"), Matrix(source, f"{prefix}.wq_b")
        self.wkv = Matrix(source, f"{prefix}.wkv")
        self.wo_a, self.wo_b = Matrix(source, f"{prefix}.wo_a"), Matrix(source, f"{prefix}.wo_b")
        self.register_buffer("q_norm", source.stored(f"{prefix}.q_norm.weight"))
        self.register_buffer("kv_norm", source.stored(f"{prefix}.kv_norm.weight"))
        self.register_buffer("sink", source.stored(f"{prefix}.attn_sink"))
        self.compressor = Compressor(source, layer, constants, operators) if layer.is_kv_source else None
        self.index_keys = IndexKeys(source, layer, constants, operators) if layer.is_kv_source else None
        self.indexer = Indexer(source, layer, constants, operators) if layer.is_index_source else None

    def store_entries(self, u: Tensor, step: StepContext) -> None:
        """Complete the entries and index keys that this step's rows u [T, d] close; once in a step, and only if the
        layer is a KV source.

        They are exact whatever a later truncation drops, so a truncated step stores them from all its rows first.
        """
        layer = self.layer
        if self.compressor is None or self.index_keys is None or layer.index in step.completed:
            return
        assert layer.main is not None
        assert layer.index_keys is not None
        main, keys = step.cache.block_rows(layer.main), step.cache.block_rows(layer.index_keys)
        self.index_keys(self.compressor(u, main, step), keys, step)
        step.completed.add(layer.index)

    def forward(self, u: Tensor, step: StepContext) -> Tensor:
        """u [T, d] to [T, d]; stores this step's window rows, entries and index keys."""
        c, ops = self.constants, self.operators
        rotation = step.rotation(self.layer.rope)
        qr = rms_norm(ops.linear(u, self.wq_a), self.q_norm, c.rms_norm_eps)
        q = rotate_tail(ops.linear(qr, self.wq_b).view(-1, c.num_attention_heads, c.head_dim), rotation)
        stored = self.encode_rows(u, step)
        entries = self._entries(u, qr, step)

        ring = step.cache.slot_rows(self.layer.swa)
        index = step.ring(ring, c.sliding_window)
        # Earlier steps' rows are read before this step's rows take their places in the ring.
        window = WindowRows(ring.read_with(index.ring_offsets, stored), index.pool, index.valid)
        out = ops.sparse_attention(q, window, entries, self.sink, scale=c.head_dim**-0.5)
        self.store_rows(stored, step)
        turned = rotate_tail(out, step.inverse_rotation(self.layer.rope))
        grouped = turned.view(out.shape[0], c.o_groups, c.num_attention_heads // c.o_groups * c.head_dim)
        return ops.linear(ops.grouped_linear(grouped, self.wo_a), self.wo_b)

    def encode_rows(self, u: Tensor, step: StepContext) -> Tensor:
        """The key-value rows of u [T, d] at the step's positions, encoded as the layer's ring stores them."""
        kv = rms_norm(self.operators.linear(u, self.wkv), self.kv_norm, self.constants.rms_norm_eps)
        return step.cache.slot_rows(self.layer.swa).codec.encode(rotate_tail(kv, step.rotation(self.layer.rope)))

    def store_rows(self, stored: Tensor, step: StepContext) -> None:
        """Write the encoded rows of the step into the layer's ring, each at the place of its position."""
        ring = step.cache.slot_rows(self.layer.swa)
        index = step.ring(ring, self.constants.sliding_window)
        rows = stored.index_select(0, index.write_tokens)
        self.operators.kv_scatter(ring, index.write_slot, index.write_row, rows)
        step.counts.write("swa", self.layer.index, rows.shape[0])

    def _entries(self, u: Tensor, qr: Tensor, step: StepContext) -> EntryRows | None:
        """Complete and choose compressed entries as this layer's roles say; none at ratio 0."""
        self.store_entries(u, step)
        layer = self.layer
        if layer.main is None or layer.index_keys is None or layer.index_source is None:
            return None
        main, keys = step.cache.block_rows(layer.main), step.cache.block_rows(layer.index_keys)
        if self.indexer is not None:
            step.publish(layer.index, main, self.indexer(u, qr, keys, step))
        return step.selections[layer.index_source].rows(main)
