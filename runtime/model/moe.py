"""Mixture of experts: bias-corrected routing by sqrt(softplus) scores, routed experts and a shared one."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.stored import ExpertStack, Matrix
from deepinfer_gen.runtime.weights import TensorSource

# Added to the sum of the chosen scores before dividing by it; part of the routing formula, not a norm's epsilon.
_ROUTE_EPS = 1e-20


class MixtureOfExperts(nn.Module):
    """The FFN ``prefix`` (``layers.L.ffn`` or ``mtp.S.ffn``) with ``experts`` routed experts, ``per_token`` a token."""

    bias: Tensor

    def __init__(
        self,
        source: TensorSource,
        prefix: str,
        constants: Constants,
        operators: Operators,
        *,
        experts: int,
        per_token: int,
    ) -> None:
        super().__init__()
        self.operators, self.constants, self.per_token = operators, constants, per_token
        self.gate = Matrix(source, f"{prefix}.gate")
        self.register_buffer("bias", source.stored(f"{prefix}.gate.bias"))
        routed = [f"{prefix}.experts.{e}" for e in range(experts)]
        self.w13 = ExpertStack(source, routed, ("w1", "w3"))
        self.w2 = ExpertStack(source, routed, ("w2",))
        self.shared_w1, self.shared_w2, self.shared_w3 = (
            Matrix(source, f"{prefix}.shared_experts.{role}") for role in ("w1", "w2", "w3")
        )

    def forward(self, u: Tensor) -> Tensor:
        """u [T, d] to [T, d]; routed and shared results meet in float32 and are rounded once."""
        ops, limit = self.operators, self.constants.swiglu_limit
        chosen, weights = self.route(u)
        routed = ops.moe_experts(u, chosen, weights, self.w13, self.w2, limit=limit)
        hidden = ops.swiglu(ops.linear(u, self.shared_w1), ops.linear(u, self.shared_w3), limit=limit)
        return routed.add_(ops.linear(hidden, self.shared_w2)).to(u.dtype)

    def route(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts int64 [T, k] and their float32 weights [T, k]; the bias chooses and does not weigh."""
        scores = torch.sqrt(F.softplus(self.operators.linear(u.to(torch.float32), self.gate)))
        chosen = torch.topk(scores + self.bias, self.per_token, dim=1).indices
        weights = scores.gather(1, chosen)
        if weights.shape[1] > 1:  # as released: the score of a single chosen expert is its weight
            weights.div_(weights.sum(1, keepdim=True).add_(_ROUTE_EPS))
        return chosen, weights.mul_(self.constants.routed_scaling_factor)
