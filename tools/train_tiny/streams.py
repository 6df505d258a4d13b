"""Norms, rotations and the lagged hyper-connections of B x T rows at once."""

from __future__ import annotations

import math

import torch
from fusion import fused
from sizes import Sizes
from torch import Tensor, nn

_NORM_EPS = 1e-20
"""The released rms_norm_eps, which also stands in the mix of the streams and the gate of the Engram."""


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last axis: float32, in the shape of ``x``."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _NORM_EPS) * weight


def rotation(sizes: Sizes, compressed: bool) -> Tensor:
    """cos and sin of every position and pair, [positions, rope / 2, 2]: plain, or YaRN of compressed layers."""
    width = sizes.qk_rope_head_dim
    theta = sizes.compress_rope_theta if compressed else sizes.rope_theta
    pair = torch.arange(width // 2, dtype=torch.float64)
    frequency = theta ** (-2 * pair / width)
    if compressed:
        scaling = sizes.rope_scaling
        original = scaling["original_max_position_embeddings"]

        def turning(turns: float) -> float:
            return float(width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta)))

        low, high = math.floor(turning(scaling["beta_fast"])), math.ceil(turning(scaling["beta_slow"]))
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        frequency = frequency / scaling["factor"] * ramp + frequency * (1 - ramp)
    angle = torch.arange(sizes.max_position_embeddings, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], -1).float()


def rotate(x: Tensor, turn: Tensor, *, inverse: bool = False) -> Tensor:
    """Turn the adjacent pairs of the last channels of x [..., width] by ``turn``, broadcast as [..., rope / 2, 2]."""
    width = 2 * turn.shape[-2]
    tail = torch.unflatten(x[..., -width:].float(), -1, (-1, 2))
    even, odd = tail.unbind(-1)
    cos, sin = turn.unbind(-1)
    sin = -sin if inverse else sin
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([x[..., :-width], turned.to(x.dtype)], -1)


@fused
def mix(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, eps: float) -> tuple[Tensor, ...]:
    """Streams [B, T, n, d] to pre [B, T, n], post [B, T, n] and comb [B, T, n, n], its first index the input stream."""
    n = x.shape[2]
    flat = x.float().flatten(2)
    m = flat @ fn.t() * torch.rsqrt(flat.square().mean(-1, keepdim=True) + _NORM_EPS)
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax(torch.unflatten(m[..., 2 * n :] * scale[2] + base[2 * n :], -1, (n, n)), -1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


@fused
def collapse_norm(x: Tensor, pre: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of the streams [B, T, n, d] weighted by pre [B, T, n]: float32 [B, T, d]."""
    return rms((x * pre.unsqueeze(-1)).sum(2), weight)


@fused
def expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The streams after a sublayer that gave y [B, T, d]."""
    carried = (comb.unsqueeze(-1) * x.unsqueeze(3)).sum(2)
    return post.unsqueeze(-1) * y.float().unsqueeze(2) + carried


class HyperConnection(nn.Module):
    """Parameters of one site; they carry the released names on the layer (``hc_attn_fn``, ...)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        n, d = sizes.hc_mult, sizes.hidden_size
        self.iterations, self.eps = sizes.hc_sinkhorn_iters, sizes.hc_eps
        self.fn = nn.Parameter(torch.zeros(n * (n + 2), n * d))
        # Streams begin as copies: unequal biases let them part. comb begins near the identity.
        base = torch.cat([0.5 * torch.randn(2 * n), 2 * torch.eye(n).flatten()])
        self.base, self.scale = nn.Parameter(base), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pre, post and comb of ``mix``."""
        pre, post, comb = mix(x, self.fn, self.base, self.scale, self.iterations, self.eps)
        return pre, post, comb
