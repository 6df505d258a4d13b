"""Manifold-constrained hyper-connections: mixing coefficients of n residual streams, collapse and expand.

The n x n stream mixing matrix is made doubly stochastic by Sinkhorn passes. Its first index is the input stream.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.tiles import tiles


def mix(
    x: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    iterations: int,
    norm_eps: float,
    eps: float,
    tokens: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of one site from the streams x [T, n, d].

    ``fn`` [n * (n + 2), n * d] has the rows pre | post | comb; ``base`` and ``scale`` [n * (n + 2)]. Returns pre
    [T, n], post [T, n] and comb [T, n, n].
    """
    streams = x.shape[1]
    passes = _sum_matrices(streams, x)
    parts = [
        _mix_tile(x[t].flatten(1), fn, base, scale, passes, streams, iterations, norm_eps, eps)
        for t in tiles(x.shape[0], tokens)
    ]
    if len(parts) == 1:
        return parts[0]
    pre, post, comb = zip(*parts, strict=True)
    return torch.cat(pre), torch.cat(post), torch.cat(comb)


def collapse(x: Tensor, pre: Tensor, *, tokens: int) -> Tensor:
    """The sublayer's input: sum over streams of pre[i] * x[i]; x [T, n, d], pre [T, n] to [T, d]."""
    parts = [torch.bmm(pre[t].unsqueeze(1), x[t]).squeeze(1) for t in tiles(x.shape[0], tokens)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor, *, tokens: int) -> Tensor:
    """Streams after a sublayer: out[j] = post[j] * y + sum over i of comb[i, j] * x[i]; [T, n, d]."""
    parts = [
        torch.baddbmm(post[t].unsqueeze(2) * y[t].unsqueeze(1), comb[t].transpose(1, 2), x[t])
        for t in tiles(x.shape[0], tokens)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sum_matrices(streams: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """0/1 matrices [n*n, n*n]: a flattened matrix times the first (second) has its row (column) sum in every place."""
    ones = torch.ones((streams, streams), dtype=like.dtype, device=like.device)
    eye = torch.eye(streams, dtype=like.dtype, device=like.device)
    return torch.kron(eye, ones), torch.kron(ones, eye)


def _mix_tile(
    flat: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    sums: tuple[Tensor, Tensor],
    streams: int,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    m = torch.addcmul(base, F.linear(flat, fn) * rms, scale)
    gates = torch.sigmoid(m[:, : 2 * streams])
    comb = torch.softmax(m[:, 2 * streams :].unflatten(1, (streams, streams)), -1).flatten(1) + eps
    sinkhorn(comb, sums, iterations=iterations, eps=eps)
    return gates[:, :streams] + eps, 2 * gates[:, streams:], comb.unflatten(1, (streams, streams))


def sinkhorn(comb: Tensor, sums: tuple[Tensor, Tensor], *, iterations: int, eps: float) -> None:
    """One column pass, then ``iterations - 1`` times (row, column), in place on comb [T, n*n]; ends on columns.

    Both sums of a pass come from one product with a 0/1 matrix: two small operations a pass, where the step's time
    at few rows is the number of operations.
    """
    rows, columns = sums
    bias = torch.full((comb.shape[1],), eps, dtype=comb.dtype, device=comb.device)
    total = torch.empty_like(comb)
    comb.div_(torch.addmm(bias, comb, columns, out=total))
    for _ in range(iterations - 1):
        comb.div_(torch.addmm(bias, comb, rows, out=total))
        comb.div_(torch.addmm(bias, comb, columns, out=total))
