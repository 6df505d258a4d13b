"""Keeping the smallest set of tokens that holds a share of each row's probability.

Sums of float64 numbers depend on their order. Probabilities are therefore added one after the other, by every thread of
the row's block alike, which gives the bits of the reference; what is 0 is not visited.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect


def get_top_p_kernel(d: Dialect, *, vocab_size: int, tile: int, threads: int) -> Any:
    """``ordered`` float64 [rows, vocab_size] falling, ``top_p`` float64 [rows] to ``kept``: 0 outside the set."""
    T = d.T
    rows = T.dynamic("rows")

    @T.prim_func
    def top_p(
        ordered: T.Tensor((rows, vocab_size), "float64"),
        top_p: T.Tensor((rows,), "float64"),
        kept: T.Tensor((rows, vocab_size), "float64"),
    ):
        with d.kernel(rows, threads=threads) as r:
            hits = d.reduced((1, tile), "int32")
            total = d.reduced((1,), "int32")
            reach = d.staged((1,), "int32")
            positive = d.scalar("int32")
            values = d.staged((tile,), "float64")
            sum_ = d.scalar("float64")
            limit = d.scalar("float64")
            T.clear(hits)
            for t in T.serial(T.ceildiv(vocab_size, tile)):
                for i, j in d.parallel(1, tile):
                    at = T.min(t * tile + j, vocab_size - 1)
                    hits[i, j] += T.if_then_else(t * tile + j < vocab_size and ordered[r, at] > 0, 1, 0)
            T.reduce_sum(hits, total, dim=1)
            reach[0] = total[0]
            positive[0] = reach[0]
            sum_[0] = T.float64(0)
            for t in T.serial(T.ceildiv(positive[0], tile)):
                for j in d.parallel(tile):
                    at = T.min(t * tile + j, vocab_size - 1)
                    values[j] = T.if_then_else(t * tile + j < vocab_size, ordered[r, at], T.float64(0))
                for j in T.serial(tile):
                    sum_[0] = sum_[0] + values[j]
            limit[0] = top_p[r] * sum_[0]
            sum_[0] = T.float64(0)
            for t in T.serial(T.ceildiv(positive[0], tile)):
                for j in d.parallel(tile):
                    at = T.min(t * tile + j, vocab_size - 1)
                    values[j] = T.if_then_else(t * tile + j < vocab_size, ordered[r, at], T.float64(0))
                for j in T.serial(tile):
                    sum_[0] = sum_[0] + values[j]
                    at = t * tile + j
                    if at < vocab_size:
                        kept[r, at] = T.if_then_else(at == 0 or sum_[0] - values[j] < limit[0], values[j], T.float64(0))
            for t in T.serial(T.ceildiv(vocab_size, tile)):
                for j in d.parallel(tile):
                    at = t * tile + j
                    if at < vocab_size and at >= T.ceildiv(positive[0], tile) * tile:
                        kept[r, at] = T.float64(0)

    return top_p


def bind(target: Target, *, vocab_size: int, tile: int, threads: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The top-p filter of the sampler, on falling probabilities float64 [n, vocab_size] and ``top_p`` float64 [n].

    A token stays if those before it hold less than ``top_p`` of the row's sum; the first always does. The rest is 0.
    """
    kernel = target.compile(get_top_p_kernel(target.dialect, vocab_size=vocab_size, tile=tile, threads=threads))

    def keep_top_p(ordered: Tensor, top_p: Tensor) -> Tensor:
        kept = torch.empty_like(ordered)
        if ordered.shape[0]:
            kernel(ordered.contiguous(), top_p, kept)
        return kept

    return keep_top_p
