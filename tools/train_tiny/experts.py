"""The mixture of experts as one wide layer: all experts are computed, the weight of one that was not chosen is 0."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from attention import Projection
from fusion import fused
from sizes import Sizes, matrix
from torch import Tensor, nn


@fused
def routing(u: Tensor, gate: Tensor, bias: Tensor, chosen_experts: int, factor: float) -> tuple[Tensor, Tensor]:
    """Weights [..., E] of all experts, 0 where not chosen, and the share of tokens that each expert got [E]."""
    with torch.autocast(u.device.type, enabled=False):
        scores = F.softplus(F.linear(u.float(), gate.to(torch.bfloat16).float() if u.is_cuda else gate)).sqrt()
    places = (scores + bias).topk(chosen_experts, -1).indices
    chosen = torch.zeros_like(scores).scatter(-1, places, 1.0)
    weights = scores * chosen
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * factor
    return weights, chosen.flatten(0, -2).mean(0)


@fused
def gated(g: Tensor, v: Tensor, weights: Tensor, limit: float) -> Tensor:
    """SwiGLU of all experts [..., E, f] times their weights [..., E], flat."""
    wide = F.silu(g.float().clamp(max=limit)) * v.float().clamp(-limit, limit)
    by_expert = torch.unflatten(wide, -1, (weights.shape[-1], -1))
    return (by_expert * weights.unsqueeze(-1)).flatten(-2).to(g.dtype)


class Gate(Projection):
    """The router: its bias chooses, does not weigh, and is moved by the load instead of a gradient."""

    bias: Tensor
    load: Tensor

    def __init__(self, experts: int, width: int) -> None:
        super().__init__(experts, width)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)


class SharedExperts(nn.Module):
    """The expert of every token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        d, f = sizes.hidden_size, sizes.moe_intermediate_size
        self.w1, self.w3 = matrix(f, d), matrix(f, d)
        self.w2 = matrix(d, f, gain=0.1)


class RoutedExperts(nn.Module):
    """E experts, their matrices stacked [E, rows, columns]."""

    def __init__(self, sizes: Sizes, experts: int) -> None:
        super().__init__()
        d, f = sizes.hidden_size, sizes.moe_intermediate_size
        self.w1, self.w3 = matrix(experts, f, d), matrix(experts, f, d)
        self.w2 = matrix(experts, d, f, gain=0.1)


class MixtureOfExperts(nn.Module):
    """``experts`` routed experts, ``per_token`` a token, and one shared."""

    def __init__(self, sizes: Sizes, experts: int, per_token: int) -> None:
        super().__init__()
        self.sizes, self.per_token = sizes, per_token
        self.gate = Gate(experts, sizes.hidden_size)
        self.experts, self.shared_experts = RoutedExperts(sizes, experts), SharedExperts(sizes)

    def forward(self, u: Tensor, stored: dict[str, Tensor]) -> Tensor:
        """u [..., d] to [..., d]."""
        weights, load = routing(u, self.gate.weight, self.gate.bias, self.per_token, self.sizes.routed_scaling_factor)
        self.gate.load.copy_(load.detach())
        weights = torch.cat([weights, torch.ones_like(weights[..., :1])], -1)
        first, third = (
            torch.cat([stored[f"experts.{w}"].flatten(0, 1), stored[f"shared_experts.{w}"]]) for w in ("w1", "w3")
        )
        second = torch.cat([stored["experts.w2"].transpose(0, 1).flatten(1), stored["shared_experts.w2"]], 1)
        hidden = gated(F.linear(u, first), F.linear(u, third), weights, self.sizes.swiglu_limit)
        return F.linear(hidden, second)
