"""Engram: hashed n-grams of token classes read rows of a table, gated into the streams."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from fusion import fused
from sizes import Sizes, matrix
from tables import Hashes
from torch import Tensor, nn


def table_rows(classes: Tensor, pad_class: Tensor, hashes: Hashes) -> Tensor:
    """Rows int64 [B, T, orders * heads] of classes int64 [B, T]; before the first column stands the pad token's."""
    rolling, found = classes * hashes.multipliers[0], []
    for back in range(1, len(hashes.multipliers)):
        earlier = torch.cat([pad_class.expand(classes.shape[0], back), classes[:, :-back]], 1)
        rolling = rolling ^ (earlier * hashes.multipliers[back])
        found.append(rolling.unsqueeze(-1) % hashes.primes[back - 1] + hashes.offsets[back - 1])
    return torch.cat(found, -1)


@fused
def gate_in(x: Tensor, pair: Tensor, q_weight: Tensor, k_weight: Tensor) -> Tensor:
    """Streams [B, T, n, d] plus the value of ``pair`` [B, T, n + 1, d], gated by the n keys before it."""
    keys, value = pair[:, :, :-1].float(), pair[:, :, -1:].float()
    norms = torch.rsqrt(x.square().mean(-1) + 1e-20) * torch.rsqrt(keys.square().mean(-1) + 1e-20)
    dot = (x * (q_weight * k_weight) * keys).sum(-1) * norms * x.shape[-1] ** -0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
    return x + gate.unsqueeze(-1) * value


class Engram(nn.Module):
    """One layer's table and projections."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor

    def __init__(self, sizes: Sizes, hashes: Hashes) -> None:
        super().__init__()
        n, d = sizes.hc_mult, sizes.hidden_size
        orders, heads = hashes.primes.shape
        for name in ("multipliers", "primes", "offsets"):
            self.register_buffer(name, getattr(hashes, name), persistent=False)
        self.embed = nn.Parameter(torch.randn(int(hashes.primes.sum()), sizes.engram_head_dim) * 0.5)
        self.wkv = matrix((n + 1) * d, orders * heads * sizes.engram_head_dim)
        with torch.no_grad():
            self.wkv[n * d :] *= 0.1  # the value begins small, like every other addition to the streams
        self.q_weight, self.k_weight = nn.Parameter(torch.ones(n, d)), nn.Parameter(torch.ones(n, d))

    def rows(self, classes: Tensor, pad_class: Tensor) -> Tensor:
        """``table_rows`` by the layer's hashes."""
        return table_rows(classes, pad_class, Hashes(self.multipliers, self.primes, self.offsets))

    def forward(self, x: Tensor, rows: Tensor, stored: dict[str, Tensor], dropout: float) -> Tensor:
        """Streams [B, T, n, d] and table rows [B, T, R] to streams; in training whole rows are dropped."""
        gathered = F.embedding(rows, stored["embed"])
        if self.training and dropout:
            gathered = F.dropout1d(gathered.flatten(0, 1), dropout).view_as(gathered)
        pair = torch.unflatten(F.linear(gathered.flatten(2), stored["wkv"]), -1, (self.q_weight.shape[0] + 1, -1))
        streams: Tensor = gate_in(x, pair, self.q_weight, self.k_weight)
        return streams
