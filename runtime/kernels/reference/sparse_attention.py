"""Attention of many query heads over one shared key-value row per position: window rows plus selected entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles
from deepinfer_gen.runtime.kv_cache import RegionRows


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows [N, D] of which query t may read ``index[t]`` where ``valid[t]``; both [T, W].

    An invalid place must index a finite row of the query's own.
    """

    rows: Tensor
    index: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class EntryRows:
    """Compressed rows in ``region`` of which query t reads ``offsets[t]`` where ``valid[t]``; both [T, S]."""

    region: RegionRows
    offsets: Tensor
    valid: Tensor


def sparse_attention(
    q: Tensor, window: WindowRows, entries: EntryRows | None, sink: Tensor, *, scale: float, queries: int
) -> Tensor:
    """Softmax over the valid rows with a per-head sink in the denominator only; keys are also the values.

    q [T, H, D]; ``sink`` [H], not scaled. Returns [T, H, D], computed for ``queries`` rows at a time.
    """
    parts = []
    for t in tiles(q.shape[0], queries):
        index = window.index[t]
        scaled = q[t] * scale
        keys = [window.rows.index_select(0, index.reshape(-1)).view(*index.shape, q.shape[2])]
        masks = [window.valid[t]]
        if entries is not None:
            masks.append(entries.valid[t])
            # A pad points at bytes of another owner: its weight is 0 and so must its value be.
            rows = entries.region.read(entries.offsets[t]).masked_fill(~masks[1].unsqueeze(2), 0.0)
            keys.append(rows)
        column = sink.view(1, -1, 1).expand(scaled.shape[0], -1, 1)
        scores = [
            torch.bmm(scaled, k.transpose(1, 2)).masked_fill_(~m.unsqueeze(1), -torch.inf)
            for k, m in zip(keys, masks, strict=True)
        ]
        probabilities = torch.softmax(torch.cat([*scores, column], 2), 2)
        width = index.shape[1]
        out = torch.bmm(probabilities[..., :width], keys[0])
        if entries is not None:
            out.baddbmm_(probabilities[..., width:-1], keys[1])
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
