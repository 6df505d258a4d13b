"""One site of the lagged hyper-connections: it predicts the coefficients that this and the next sublayer use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.weights import TensorSource


class HyperConnection(nn.Module):
    """Site ``prefix`` (``layers.L.hc_attn`` or ``layers.L.hc_ffn``; ``mtp.S`` in draft layers)."""

    fn: Tensor
    base: Tensor
    scale: Tensor

    def __init__(self, source: TensorSource, prefix: str, constants: Constants, operators: Operators) -> None:
        super().__init__()
        n = constants.hc_mult
        pre, post, comb = source.stored(f"{prefix}_scale").unbind()
        self.operators = operators
        self.iterations, self.eps, self.norm_eps = constants.hc_sinkhorn_iters, constants.hc_eps, constants.rms_norm_eps
        self.register_buffer("fn", source.stored(f"{prefix}_fn"))
        self.register_buffer("base", source.stored(f"{prefix}_base"))
        # One scale per kind of coefficient, spread over the rows of fn: pre | post | comb.
        spread = [pre.expand(n), post.expand(n), comb.expand(n * n)]
        self.register_buffer("scale", torch.cat(spread))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Streams [T, n, d] to pre [T, n], post [T, n], comb [T, n, n]."""
        return self.operators.hyper_mix(
            x,
            self.fn,
            self.base,
            self.scale,
            iterations=self.iterations,
            norm_eps=self.norm_eps,
            eps=self.eps,
        )
