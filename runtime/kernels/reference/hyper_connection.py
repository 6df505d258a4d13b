"""Manifold-constrained hyper-connections: mixing coefficients of n residual streams, collapse and expand.

The n x n stream mixing matrix is made doubly stochastic by Sinkhorn passes. Its first index is the input stream.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.norm import inverse_rms
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
    parts = [
        _mix_tile(x[t].flatten(1), fn, base, scale, streams, iterations, norm_eps, eps)
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


@functools.cache
def _pass_matrices(streams: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Matrices of the row and the column pass on a coefficient-major matrix [n * n + 1, T] whose last row is 1.

    The product holds, in the place of each coefficient, the sum of its row (column) plus ``eps``; in the last row 1.
    """
    ones, eye = torch.ones((streams, streams)), torch.eye(streams)
    size = streams * streams
    matrices = []
    for sums in (torch.kron(eye, ones), torch.kron(ones, eye)):
        matrix = torch.eye(size + 1)
        matrix[:size, :size] = sums
        matrix[:size, size] = eps
        matrices.append(matrix.to(device))
    return matrices[0], matrices[1]


def _mix_tile(
    flat: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    streams: int,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.addcmul(base, F.linear(flat, fn).mul_(inverse_rms(flat, norm_eps)), scale)
    gates = torch.sigmoid(m[:, : 2 * streams])
    comb = torch.softmax(m[:, 2 * streams :].reshape(-1, streams, streams), -1) + eps
    return gates[:, :streams] + eps, 2 * gates[:, streams:], sinkhorn(comb, iterations=iterations, eps=eps)


def sinkhorn(comb: Tensor, *, iterations: int, eps: float) -> Tensor:
    """One column pass, then ``iterations - 1`` times (row, column) on positive comb [T, n, n]; ends on columns.

    A pass divides by (sum + eps). At few rows the time is the number of operations, so one product with a constant
    matrix gives all sums of a pass with eps added, for all tokens.
    """
    count, streams, _ = comb.shape
    rows, columns = _pass_matrices(streams, eps, comb.device)
    work = torch.cat([comb.view(count, -1).t(), comb.new_ones((1, count))])
    total = torch.empty_like(work)
    work.div_(torch.mm(columns, work, out=total))
    for _ in range(iterations - 1):
        work.div_(torch.mm(rows, work, out=total))
        work.div_(torch.mm(columns, work, out=total))
    return work[:-1].t().contiguous().view(count, streams, streams)
