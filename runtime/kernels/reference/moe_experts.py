"""Routed experts: rows grouped by expert, one pair of products per expert that has rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); gate | up [N, 2 * I] to [N, I]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def moe_experts(
    x: Tensor, chosen: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, *, limit: float, tokens: int
) -> Tensor:
    """Sum over the chosen experts of w2(weight * swiglu(w13 x)).

    x [T, d]; ``chosen`` int64 and ``weights`` [T, k]; ``w13`` [E, 2 * I, d] is gate | up; ``w2`` [E, d, I]. The weight
    is applied before w2. A row's k results are added in the order of ``chosen``, whatever else is in the batch.
    Returns [T, d].
    """
    count, per_token = chosen.shape
    order = torch.argsort(chosen.view(-1), stable=True)
    rows = x.index_select(0, order // per_token)
    experts, sizes = _segments(torch.bincount(chosen.view(-1), minlength=w13.shape[0]).tolist(), tokens)
    gate_up = x.new_empty((rows.shape[0], w13.shape[1]))
    _grouped_mm(rows, experts, sizes, w13, gate_up)
    hidden = swiglu(gate_up, limit).mul_(weights.view(-1).index_select(0, order).unsqueeze(1))
    _grouped_mm(hidden, experts, sizes, w2, rows)
    out = torch.empty_like(rows).index_copy_(0, order, rows)
    return out.view(count, per_token, -1).sum(1)


def _grouped_mm(x: Tensor, experts: list[int], sizes: list[int], weight: Tensor, out: Tensor) -> None:
    """Each segment of x times its expert's weight [out, in] transposed, into the same segment of ``out``."""
    transposed = weight.transpose(1, 2).unbind()
    for expert, rows, target in zip(experts, torch.split(x, sizes), torch.split(out, sizes), strict=True):
        torch.mm(rows, transposed[expert], out=target)


def _segments(counts: list[int], tokens: int) -> tuple[list[int], list[int]]:
    """Expert and length of each segment of the grouped rows: no empty ones, none longer than ``tokens``."""
    experts, sizes = [], []
    for expert, count in enumerate(counts):
        for t in tiles(count, tokens):
            experts.append(expert)
            sizes.append(t.stop - t.start)
    return experts, sizes
