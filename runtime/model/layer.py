"""One decoder layer: optional Engram, attention and mixture of experts, joined by lagged hyper-connections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.model.attention import Attention
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.engram import Engram
from deepinfer_gen.runtime.model.hyper_connection import HyperConnection
from deepinfer_gen.runtime.model.moe import MixtureOfExperts
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import TensorSource


class Layer(nn.Module):
    """Each sublayer collapses the streams with the coefficients that the sublayer before it predicted."""

    attn_norm: Tensor
    ffn_norm: Tensor

    def __init__(
        self,
        source: TensorSource,
        layer: LayerPlan,
        constants: Constants,
        operators: Operators,
        *,
        is_draft_target: bool = False,
    ) -> None:
        super().__init__()
        prefix = layer.prefix
        self.index, self.is_draft_target = layer.index, is_draft_target
        self.operators, self.eps = operators, constants.rms_norm_eps
        self.engram = Engram(source, f"{prefix}.engram", layer.engram, constants, operators) if layer.engram else None
        self.attention_mix = HyperConnection(source, f"{prefix}.hc_attn", constants, operators)
        self.attention = Attention(source, layer, constants, operators)
        self.ffn_mix = HyperConnection(source, f"{prefix}.hc_ffn", constants, operators)
        self.ffn = MixtureOfExperts(
            source,
            f"{prefix}.ffn",
            constants,
            operators,
            experts=layer.experts,
            per_token=layer.experts_per_token,
        )
        self.register_buffer("attn_norm", source.stored(f"{prefix}.attn_norm.weight"))
        self.register_buffer("ffn_norm", source.stored(f"{prefix}.ffn_norm.weight"))

    def store_entries(self, x: Tensor, pre: Tensor, step: StepContext) -> None:
        """Store the compressed entries and index keys of all rows of a KV source, ahead of a ``forward`` on a part of
        them.
        """
        if self.attention.compressor is not None:
            self.attention.store_entries(self._attention_input(x, pre), step)

    def forward(self, x: Tensor, pre: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Streams [T, n, d] and the last sublayer's pre [T, n] to the same after this layer."""
        ops = self.operators
        step.counts.compute(self.index, x.shape[0])
        if self.engram is not None:
            x = self.engram(x, step.ngrams)
        if self.is_draft_target:
            step.features.append(x.to(torch.float32).mean(1).to(x.dtype))
        next_pre, post, comb = self.attention_mix(x)
        y = self.attention(self._attention_input(x, pre), step)
        x = ops.hyper_expand(y, x, post, comb)
        last_pre, post, comb = self.ffn_mix(x)
        y = self.ffn(rms_norm(ops.hyper_collapse(x, next_pre), self.ffn_norm, self.eps))
        return ops.hyper_expand(y, x, post, comb), last_pre

    def _attention_input(self, x: Tensor, pre: Tensor) -> Tensor:
        return rms_norm(self.operators.hyper_collapse(x, pre), self.attn_norm, self.eps)
