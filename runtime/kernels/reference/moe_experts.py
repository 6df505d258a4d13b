"""Routed experts: rows grouped by expert, one pair of products per expert that has rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.linear import operand
from deepinfer_gen.runtime.kernels.reference.tiles import tiles


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) in float32; both [N, I]."""
    return F.silu(gate.to(torch.float32).clamp(max=limit)) * up.to(torch.float32).clamp(-limit, limit)


def moe_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    w13: Callable[[int], Tensor],
    w2: Callable[[int], Tensor],
    *,
    experts: int,
    limit: float,
    quantized: bool,
    tokens: int,
) -> Tensor:
    """Sum over the chosen experts of w2(weight * swiglu(w13 x)), each result rounded to the type of x before the sum.

    x [T, d]; ``chosen`` int64 and float32 ``weights`` [T, k]; ``w13(e)`` float32 [2 * I, d] is gate | up of expert e,
    ``w2(e)`` [d, I]; they are asked once for each of the ``experts`` that has rows. The weight is applied before w2.
    A row's k results are added in the order of ``chosen``, whatever else is in the batch. Returns float32 [T, d].
    """
    count, per_token = chosen.shape
    order = torch.argsort(chosen.view(-1), stable=True)
    rows = operand(x, quantized=quantized).index_select(0, order // per_token)
    row_weights = weights.view(-1).index_select(0, order).unsqueeze(1)
    results = torch.empty_like(rows)
    start = 0
    for expert, size in enumerate(torch.bincount(chosen.view(-1), minlength=experts).tolist()):
        if size:
            up_matrix, down_matrix = w13(expert).t(), w2(expert).t()
        for t in tiles(size, tokens):
            segment = slice(start + t.start, start + t.stop)
            gate, up = torch.mm(rows[segment], up_matrix).to(x.dtype).chunk(2, -1)
            hidden = swiglu(gate, up, limit).mul_(row_weights[segment]).to(x.dtype)
            results[segment] = torch.mm(operand(hidden, quantized=quantized), down_matrix).to(x.dtype)
        start += size
    return torch.empty_like(results).index_copy_(0, order, results).view(count, per_token, x.shape[1]).sum(1)
