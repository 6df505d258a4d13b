"""Pooling the members of a compressed entry."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiled


def pool_members(rows: Tensor, members: Tensor, *, tokens: int) -> Tensor:
    """Gated pooling, per channel: sum over members of softmax(score) * kv.

    ``rows`` [N, 2 * D] holds kv | score; ``members`` int64 [C, ratio] chooses the rows of each entry. Returns [C, D],
    ``tokens`` entries at a time.
    """

    def pool(index: Tensor) -> Tensor:
        kv, score = rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1]).chunk(2, -1)
        return (torch.softmax(score, 1) * kv).sum(1)

    return tiled(pool, tokens, members)
