"""Attention of many query heads over one shared key-value row per position: window rows plus selected entries."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles
from deepinfer_gen.runtime.kv_cache import RegionRows


def sparse_attention(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    window_valid: Tensor,
    entries: RegionRows | None,
    entry_offsets: Tensor | None,
    entry_valid: Tensor | None,
    sink: Tensor,
    *,
    scale: float,
    queries: int,
) -> Tensor:
    """Softmax over the valid rows with a per-head sink in the denominator only; keys are also the values.

    q [T, H, D]; ``window`` [N, D] holds the candidate window rows and ``window_index``/``window_valid`` [T, W] choose
    a query's own; ``entry_offsets``/``entry_valid`` [T, S] choose compressed rows of the region ``entries``; ``sink``
    [H], not scaled. Returns [T, H, D], computed for ``queries`` rows at a time.
    """
    parts = []
    for t in tiles(q.shape[0], queries):
        index = window_index[t]
        keys = window.index_select(0, index.reshape(-1)).unflatten(0, index.shape)
        valid = window_valid[t]
        if entries is not None and entry_offsets is not None and entry_valid is not None:
            keys = torch.cat([keys, entries.read(entry_offsets[t])], 1)
            valid = torch.cat([valid, entry_valid[t]], 1)
        invalid = ~valid
        # A masked place may point at bytes of another owner: its weight is 0 and so must its value be.
        keys.masked_fill_(invalid.unsqueeze(2), 0.0)
        scores = torch.bmm(q[t] * scale, keys.transpose(1, 2)).masked_fill_(invalid.unsqueeze(1), -torch.inf)
        column = sink.view(1, -1, 1).expand(scores.shape[0], -1, 1)
        probabilities = torch.softmax(torch.cat([scores, column], 2), 2)[..., :-1]
        parts.append(torch.bmm(probabilities, keys))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
