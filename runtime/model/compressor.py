"""The compressor of a KV source: tokens become entries of the shared compressed cache, one per ``ratio`` tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kv_cache import RegionRows
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.rope import rotate_tail
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import TensorSource


class Compressor(nn.Module):
    """Completes entries, stores their rotated form in the main rows and returns the plain latents for the index keys.

    Ratio 1 projects each token. At a larger ratio kv and score rows wait in a ring of the state slot until their
    group is complete; a group may begin in an earlier step.
    """

    norm: Tensor

    def __init__(self, source: TensorSource, layer: LayerPlan, constants: Constants, operators: Operators) -> None:
        super().__init__()
        prefix = f"{layer.prefix}.attn.compressor"
        self.operators, self.layer, self.eps = operators, layer, constants.rms_norm_eps
        self.wkv = Matrix(source, f"{prefix}.wkv")
        self.wgate = None if layer.ca_state is None else Matrix(source, f"{prefix}.wgate")
        self.register_buffer("norm", source.stored(f"{prefix}.norm.weight"))

    def forward(self, u: Tensor, main: RegionRows, step: StepContext) -> Tensor:
        """u [T, d] to the latents [C, head_dim] of the entries this step completes, before rotation."""
        if self.layer.ca_state is None or self.wgate is None:
            rows = self.operators.linear(u, self.wkv)
        else:
            rows = self._pool(u, self.wgate, step.cache.slot_rows(self.layer.ca_state), main, step)
        latent = rms_norm(rows, self.norm, self.eps)
        index = step.entries(main, self.layer.ratio)
        rotation = step.rotary[self.layer.rope].index_select(0, index.positions)
        stored = main.codec.encode(rotate_tail(latent.clone(), rotation))
        self.operators.kv_scatter(main, index.block, index.row, stored)
        step.counts.write("main", self.layer.index, stored.shape[0])
        return latent

    def _pool(self, u: Tensor, wgate: Matrix, ring: RegionRows, main: RegionRows, step: StepContext) -> Tensor:
        """Pooled rows [C, head_dim] in the type of u; projections, ring and pooling are float32 under every policy."""
        wide = u.to(torch.float32)
        index = step.ring(ring, self.layer.ratio)
        # kv | score: the row of the accumulator ring
        stored = ring.codec.encode(torch.cat([self.operators.linear(wide, w) for w in (self.wkv, wgate)], 1))
        pool = ring.read_with(index.ring_offsets, stored)
        tokens = step.entries(main, self.layer.ratio).tokens
        latent = self.operators.pool_members(pool, index.pool.index_select(0, tokens))
        self.operators.kv_scatter(ring, index.write_slot, index.write_row, stored.index_select(0, index.write_tokens))
        step.counts.write("ca_state", self.layer.index, index.write_tokens.shape[0])
        return latent.to(u.dtype)
