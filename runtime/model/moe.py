"""Mixture of experts: bias-corrected routing by sqrt(softplus) scores, routed experts and a shared one."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.weights import Weights

# Added to the sum of the chosen scores before dividing by it; part of the routing formula, not a norm's epsilon.
_ROUTE_EPS = 1e-20


class MixtureOfExperts(nn.Module):
    """The FFN of layer ``prefix`` (``layers.L.ffn``)."""

    gate: Tensor
    bias: Tensor
    w13: Tensor
    w2: Tensor
    shared_w13: Tensor
    shared_w2: Tensor

    def __init__(self, weights: Weights, prefix: str, constants: Constants, operators: ReferenceOperators) -> None:
        super().__init__()
        self.operators, self.constants = operators, constants

        def gate_up(expert: str) -> Tensor:
            parts = [weights.decode(f"{prefix}.{expert}.{w}.weight") for w in ("w1", "w3")]
            return torch.cat(parts)

        routed = [f"experts.{e}" for e in range(constants.n_routed_experts)]
        self.register_buffer("gate", weights.decode(f"{prefix}.gate.weight"))
        self.register_buffer("bias", weights.decode(f"{prefix}.gate.bias"))
        self.register_buffer("w13", torch.stack([gate_up(e) for e in routed]))
        self.register_buffer("w2", torch.stack([weights.decode(f"{prefix}.{e}.w2.weight") for e in routed]))
        self.register_buffer("shared_w13", gate_up("shared_experts"))
        self.register_buffer("shared_w2", weights.decode(f"{prefix}.shared_experts.w2.weight"))

    def forward(self, u: Tensor) -> Tensor:
        """u [T, d] to [T, d]."""
        ops, limit = self.operators, self.constants.swiglu_limit
        chosen, weights = self.route(u)
        routed = ops.moe_experts(u, chosen, weights, self.w13, self.w2, limit=limit)
        shared = ops.linear(ops.swiglu(ops.linear(u, self.shared_w13), limit=limit), self.shared_w2)
        return routed.add_(shared)

    def route(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts int64 [T, k] and their weights [T, k]; the bias chooses and does not weigh."""
        scores = torch.sqrt(F.softplus(self.operators.linear(u, self.gate)))
        chosen = torch.topk(scores + self.bias, self.constants.num_experts_per_tok, dim=1).indices
        weights = scores.gather(1, chosen)
        if weights.shape[1] > 1:  # as released: the score of a single chosen expert is its weight
            weights.div_(weights.sum(1, keepdim=True).add_(_ROUTE_EPS))
        return chosen, weights.mul_(self.constants.routed_scaling_factor)
