"""Manifold-constrained hyper-connections: mixing coefficients of n residual streams, collapse and expand.

The n x n stream mixing matrix is made doubly stochastic by Sinkhorn passes. Its first index is the input stream.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.norm import inverse_rms
from deepinfer_gen.runtime.kernels.reference.tiles import tiled


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
    """Coefficients of one site from the streams x [T, n, d], in float32.

    ``fn`` [n * (n + 2), n * d] has the rows pre | post | comb; ``base`` and ``scale`` [n * (n + 2)]. Returns pre
    [T, n], post [T, n] and comb [T, n, n].
    """
    count, streams, _ = x.shape
    joined = tiled(
        lambda tile: _mix_tile(tile.to(torch.float32).flatten(1), fn, base, scale, streams, iterations, norm_eps, eps),
        tokens,
        x,
    )
    pre, post, comb = joined[:, :streams], joined[:, streams : 2 * streams], joined[:, 2 * streams :]
    return pre, post, comb.view(count, streams, streams)


def collapse(x: Tensor, pre: Tensor, *, tokens: int) -> Tensor:
    """The sublayer's input: sum over streams of pre[i] * x[i]; x [T, n, d], float32 pre [T, n] to [T, d] like x."""

    def product(x_: Tensor, pre_: Tensor) -> Tensor:
        return torch.bmm(pre_.unsqueeze(1), x_.to(torch.float32)).squeeze(1).to(x.dtype)

    return tiled(product, tokens, x, pre)


def expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor, *, tokens: int) -> Tensor:
    """Streams after a sublayer: out[j] = post[j] * y + sum over i of comb[i, j] * x[i]; [T, n, d]."""
    return tiled(_expand_tile, tokens, y, x, post, comb)


def _expand_tile(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return torch.baddbmm(post.unsqueeze(2) * y.unsqueeze(1), comb.transpose(1, 2), x.to(torch.float32)).to(x.dtype)


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


@functools.cache
def _gate_terms(streams: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """What turns sigmoids into pre (plus ``eps``) and post (times 2): the summand and the factor, [2 * n] each."""
    zeros, ones = torch.zeros(streams), torch.ones(streams)
    return torch.cat([zeros + eps, zeros]).to(device), torch.cat([ones, 2 * ones]).to(device)


def _mix_tile(
    flat: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    streams: int,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> Tensor:
    """Coefficients of some tokens, flat [T, n * d]: pre | post | comb, flattened [T, n * (n + 2)]."""
    m = torch.addcmul(base, F.linear(flat, fn).mul_(inverse_rms(flat, norm_eps)), scale)
    shift, factor = _gate_terms(streams, eps, flat.device)
    gates = torch.addcmul(shift, torch.sigmoid(m[:, : 2 * streams]), factor)
    comb = torch.softmax(m[:, 2 * streams :].reshape(-1, streams, streams), -1).add_(eps)
    balanced = sinkhorn(comb, iterations=iterations, eps=eps)
    return torch.cat([gates, balanced.flatten(1)], 1)


def sinkhorn(comb: Tensor, *, iterations: int, eps: float) -> Tensor:
    """One column pass, then ``iterations - 1`` times (row, column) on positive comb [T, n, n]; ends on columns.

    A pass divides by (sum + eps). At few rows the time is the number of operations, so one product with a constant
    matrix gives all sums of a pass with eps added, for all tokens.
    """
    count, streams, _ = comb.shape
    rows, columns = _pass_matrices(streams, eps, comb.device)
    work = torch.cat([comb.flatten(1).t(), comb.new_ones((1, count))])
    total = torch.empty_like(work)
    work.div_(torch.mm(columns, work, out=total))
    for _ in range(iterations - 1):
        work.div_(torch.mm(rows, work, out=total))
        work.div_(torch.mm(columns, work, out=total))
    return work[:-1].t().view(count, streams, streams)
