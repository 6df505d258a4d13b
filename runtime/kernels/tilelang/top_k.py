"""Keeping the most likely tokens of each row without sorting it.

The bits of non-negative float64 numbers order like the numbers, so the k-th greatest is found bit by bit from counts of
what reaches a candidate; of its equals those with the lowest ids stay, and the bound on ids is found the same way.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect

_VALUE_BITS = 63


def get_top_k_kernel(d: Dialect, *, vocab_size: int, tile: int, threads: int) -> Any:
    """``bits`` int64 [rows, vocab_size] (of probabilities), ``top_k`` int64 [rows] to ``kept``: 0 outside the top.

    One block a row, ``tile`` ids at a time.
    """
    T = d.T
    rows = T.dynamic("rows")
    id_bits = vocab_size.bit_length()
    i64 = "int64"

    @T.prim_func
    def top_k(
        bits: T.Tensor((rows, vocab_size), i64), top_k: T.Tensor((rows,), i64), kept: T.Tensor((rows, vocab_size), i64)
    ):
        with d.kernel(rows, threads=threads) as r:
            hits = d.reduced((1, tile), "int32")
            total = d.reduced((1,), "int32")
            reach = d.staged((1,), "int32")
            least = d.scalar(i64)
            missing = d.scalar(i64)
            bound = d.scalar(i64)
            least[0] = T.int64(0)
            for b in T.serial(_VALUE_BITS):
                T.clear(hits)
                for t in T.serial(T.ceildiv(vocab_size, tile)):
                    for i, j in d.parallel(1, tile):
                        at = T.min(t * tile + j, vocab_size - 1)
                        candidate = least[0] | (T.int64(1) << T.cast(_VALUE_BITS - 1 - b, i64))
                        hits[i, j] += T.if_then_else(t * tile + j < vocab_size and bits[r, at] >= candidate, 1, 0)
                T.reduce_sum(hits, total, dim=1)
                reach[0] = total[0]
                least[0] = T.if_then_else(
                    T.cast(reach[0], i64) >= top_k[r],
                    least[0] | (T.int64(1) << T.cast(_VALUE_BITS - 1 - b, i64)),
                    least[0],
                )
            T.clear(hits)
            for t in T.serial(T.ceildiv(vocab_size, tile)):
                for i, j in d.parallel(1, tile):
                    at = T.min(t * tile + j, vocab_size - 1)
                    hits[i, j] += T.if_then_else(t * tile + j < vocab_size and bits[r, at] > least[0], 1, 0)
            T.reduce_sum(hits, total, dim=1)
            reach[0] = total[0]
            missing[0] = top_k[r] - T.cast(reach[0], i64)
            bound[0] = T.int64(0)
            for b in T.serial(id_bits):
                T.clear(hits)
                for t in T.serial(T.ceildiv(vocab_size, tile)):
                    for i, j in d.parallel(1, tile):
                        at = T.min(t * tile + j, vocab_size - 1)
                        candidate = bound[0] | (T.int64(1) << T.cast(id_bits - 1 - b, i64))
                        hits[i, j] += T.if_then_else(
                            t * tile + j < vocab_size and at < candidate and bits[r, at] == least[0], 1, 0
                        )
                T.reduce_sum(hits, total, dim=1)
                reach[0] = total[0]
                bound[0] = T.if_then_else(
                    T.cast(reach[0], i64) <= missing[0],
                    bound[0] | (T.int64(1) << T.cast(id_bits - 1 - b, i64)),
                    bound[0],
                )
            for t in T.serial(T.ceildiv(vocab_size, tile)):
                for j in d.parallel(tile):
                    at = t * tile + j
                    if at < vocab_size:
                        kept[r, at] = T.if_then_else(
                            bits[r, at] > least[0] or (bits[r, at] == least[0] and at < bound[0]),
                            bits[r, at],
                            T.int64(0),
                        )

    return top_k


def bind(target: Target, *, vocab_size: int, tile: int, threads: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The top-k filter of the sampler: probabilities float64 [n, vocab_size] and ``top_k`` int64 [n] to the kept ones.

    What is outside the ``top_k`` most likely tokens of a row is 0; of equals the lowest ids are kept.
    """
    kernel = target.compile(get_top_k_kernel(target.dialect, vocab_size=vocab_size, tile=tile, threads=threads))

    def keep_top_k(probabilities: Tensor, top_k: Tensor) -> Tensor:
        kept = torch.empty_like(probabilities)
        if probabilities.shape[0]:
            kernel(probabilities.contiguous().view(torch.int64), top_k, kept.view(torch.int64))
        return kept

    return keep_top_k
