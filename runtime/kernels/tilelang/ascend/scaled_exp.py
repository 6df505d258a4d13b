"""Unnormalised probabilities of the sampler, exp((logit - largest) / temperature), in the Ascend dialect."""

from typing import Any


def get_scaled_exp_kernel(T: Any, *, rows: int, columns: int, tile: int, threads: int) -> Any:
    """``logits`` float32 [rows, columns], ``largest`` and ``inverse`` (1 / temperature) float32 [rows] to ``weights``.

    One core a row, ``tile`` columns at a time through on-chip memory; ``tile`` divides ``columns``.
    """

    @T.prim_func
    def scaled_exp(
        logits: T.Tensor((rows, columns), "float32"),
        largest: T.Tensor((rows,), "float32"),
        inverse: T.Tensor((rows,), "float32"),
        weights: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(rows) as r:
            values = T.alloc_shared((1, tile), "float32")
            for t in T.serial(columns // tile):
                T.copy(logits[r, t * tile], values)
                with T.SimtVF(threads=threads):
                    for i, j in T.Parallel(1, tile):
                        values[i, j] = T.exp((values[i, j] - largest[r]) * inverse[r])
                T.copy(values, weights[r, t * tile])

    return scaled_exp
