"""Attention of many query heads over one shared key-value row per position: window rows plus selected entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiled
from deepinfer_gen.runtime.kv_cache import RegionRows


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows [N, D] of which query t may read ``index[t]`` where ``valid[t]``; both [T, W].

    An invalid place must index a finite row of the query's own.
    """

    rows: Tensor
    index: Tensor
    valid: Tensor

    def rows_of(self, index: Tensor) -> Tensor:
        """The rows [t, W, D] of a tile of ``index`` [t, W]."""
        return self.rows.index_select(0, index.reshape(-1)).view(*index.shape, self.rows.shape[1])


@dataclass(frozen=True, slots=True)
class EntryRows:
    """Compressed rows in ``region`` of which query t reads ``offsets[t]`` where ``valid[t]``; both [T, S]."""

    region: RegionRows
    offsets: Tensor
    valid: Tensor


def sparse_attention(
    q: Tensor,
    window: WindowRows,
    entries: EntryRows | None,
    sink: Tensor,
    *,
    scale: float,
    probabilities: torch.dtype,
    queries: int,
) -> Tensor:
    """Softmax over the valid rows with a per-head sink in the denominator only; keys are also the values.

    q [T, H, D]; float32 ``sink`` [H], not scaled. Scores and sums are float32; each weight, relative to the largest of
    its query and head, is rounded to ``probabilities`` before it meets its value. Returns [T, H, D] in the type of q,
    computed for ``queries`` rows at a time.
    """

    def attend(q_: Tensor, index: Tensor, valid: Tensor, *chosen: Tensor) -> Tensor:
        keys, masks = [window.rows_of(index)], [valid]
        if entries is not None:
            offsets, mask = chosen
            # A pad points at bytes of another owner: its weight is 0 and so must its value be.
            keys.append(entries.region.read(offsets).masked_fill(~mask.unsqueeze(2), 0.0))
            masks.append(mask)
        return _attend(q_.to(torch.float32) * scale, keys, masks, sink, probabilities).to(q.dtype)

    chosen = () if entries is None else (entries.offsets, entries.valid)
    return tiled(attend, queries, q, window.index, window.valid, *chosen)


def _attend(q: Tensor, keys: list[Tensor], valid: list[Tensor], sink: Tensor, probabilities: torch.dtype) -> Tensor:
    """Scaled queries [t, H, D] over several sets of keys [t, K, D], masked by ``valid`` [t, K]."""
    scores = [
        torch.bmm(q, k.transpose(1, 2)).masked_fill_(~m.unsqueeze(1), -torch.inf)
        for k, m in zip(keys, valid, strict=True)
    ]
    joined = torch.cat(scores, 2)
    # Weights are relative to the best row, not to a sink above it: rounding them then loses the least.
    best = joined.amax(2, keepdim=True)
    weights = torch.exp(joined.sub_(best))
    total = weights.sum(2, keepdim=True).add_(torch.exp(sink.view(1, -1, 1) - best))
    rounded = weights.to(probabilities).to(torch.float32)
    out, start = torch.zeros_like(q), 0
    for k in keys:
        out.baddbmm_(rounded[..., start : start + k.shape[1]], k)
        start += k.shape[1]
    return out.div_(total)
