"""Which drafts a step verifies: the device's split of ``docs/scheduler.md`` section 8, in integers.

Every draft gets a key that orders by survival descending, position, row. Keys differ, so the least of the first
``count`` keys is found bit by bit, and a row verifies its keys from that one on: no sort.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect

_CERTAIN_BITS = 16


def get_varlen_split_kernel(d: Dialect, *, max_rows: int, nextn: int, threads: int) -> Any:
    """``confidences`` uint16 [rows, nextn], ``caps`` int32 [rows], ``count`` int64 [1] to ``drafts`` int32 [rows]."""
    T = d.T
    places = -(-max_rows * nextn // threads) * threads  # a block's threads share a buffer evenly
    key_bits = (places << _CERTAIN_BITS).bit_length()
    key = "int32" if key_bits < torch.iinfo(torch.int32).bits else "int64"
    rows = T.dynamic("rows")

    @T.prim_func
    def varlen_split(
        confidences: T.Tensor((rows, nextn), "uint16"),
        caps: T.Tensor((rows,), "int32"),
        count: T.Tensor((1,), "int64"),
        drafts: T.Tensor((rows,), "int32"),
    ):
        with d.kernel(1, threads=threads) as _:
            keys = d.staged((places,), key)
            taken = d.reduced((1, places), "int32")
            total = d.reduced((1,), "int32")
            reach = d.staged((1,), "int32")
            survival = d.scalar("int64")
            last = d.scalar(key)
            mine = d.scalar("int32")
            for i in d.parallel(places):
                row = i // nextn
                position = i % nextn
                known = T.min(row, rows - 1)
                survival[0] = T.int64(1 << _CERTAIN_BITS)
                for k in T.serial(nextn):
                    survival[0] = T.if_then_else(
                        k <= position,
                        (survival[0] * T.cast(confidences[known, k], "int64")) >> T.int64(_CERTAIN_BITS),
                        survival[0],
                    )
                keys[i] = T.if_then_else(
                    row < rows and position < caps[known],
                    T.cast(survival[0], key) * places + (places - 1 - (position * max_rows + row)),
                    T.cast(-1, key),
                )
            last[0] = T.cast(0, key)
            for b in T.serial(key_bits):
                for i, j in d.parallel(1, places):
                    bit = T.cast(1, key) << T.cast(key_bits - 1 - b, key)
                    taken[i, j] = T.if_then_else(keys[j] >= (last[0] | bit), 1, 0)
                T.reduce_sum(taken, total, dim=1)
                reach[0] = total[0]
                last[0] = T.if_then_else(
                    T.cast(reach[0], "int64") >= count[0],
                    last[0] | (T.cast(1, key) << T.cast(key_bits - 1 - b, key)),
                    last[0],
                )
            for r in d.parallel(max_rows):
                mine[0] = 0
                for k in T.serial(nextn):
                    mine[0] = mine[0] + T.if_then_else(keys[r * nextn + k] >= last[0], 1, 0)
                if r < rows:
                    drafts[r] = mine[0]

    return varlen_split


def bind(
    target: Target, *, max_rows: int, nextn: int, threads: int
) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """``speculative.verify_split.split_drafts`` for at most ``max_rows`` rows: the same arguments, the same bits."""
    kernel = target.compile(get_varlen_split_kernel(target.dialect, max_rows=max_rows, nextn=nextn, threads=threads))

    def split_drafts(confidences: Tensor, caps: Tensor, count: Tensor | int) -> Tensor:
        drafts = torch.empty_like(caps)
        if caps.shape[0]:
            total = torch.as_tensor(count, device=caps.device).to(torch.int64).reshape(1)
            kernel(confidences.to(torch.uint16), caps, total, drafts)
        return drafts

    return split_drafts
