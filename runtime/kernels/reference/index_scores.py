"""Scores of the indexer: which compressed entries a query should read."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles
from deepinfer_gen.runtime.kv_cache import RegionRows


def index_scores(
    q: Tensor,
    head_weights: Tensor,
    keys: RegionRows,
    block_tables: Tensor,
    visible: Tensor,
    *,
    width: int,
    queries: int,
    entries: int,
) -> Tensor:
    """S[t, j] = sum over heads of w[t, h] * relu(q[t, h] . k_j), -inf where j is not visible to query t.

    float32 q [T, H, D]; ``head_weights`` [T, H], to whose type dot products, weighted products and sums are rounded;
    ``block_tables`` int64 [T, blocks] are those of the queries' rows; ``visible`` int64 [T]; ``width`` is the number of
    entries scored. Returns float32 [T, width].
    """
    rounded = head_weights.dtype
    scores = q.new_empty((q.shape[0], width))
    for e in tiles(width, entries):
        j = torch.arange(e.start, e.stop, device=q.device)
        block, row = j // keys.rows, j % keys.rows
        for t in tiles(q.shape[0], queries):
            key = keys.read(keys.offsets(block_tables[t].index_select(1, block), row))
            dots = torch.bmm(q[t], key.transpose(1, 2)).to(rounded).relu_()
            dots.mul_(head_weights[t].unsqueeze(2))
            tile = dots.sum(1, dtype=torch.float32).to(rounded)
            scores[t, e] = tile.masked_fill_(j >= visible[t].unsqueeze(1), -torch.inf)
    return scores
