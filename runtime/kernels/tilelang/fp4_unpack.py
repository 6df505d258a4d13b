"""Decoding of records of e2m1 codes with group scales to the numbers that attention reads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang import fp4_values as fp4
from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect


def get_fp4_unpack_kernel(d: Dialect, *, dims: int, group: int, scale: str, rows: int, threads: int) -> Any:
    """``records`` uint8 [count, dims / 2 + dims / group] to ``values`` float32 [count, dims], ``rows`` a block."""
    T = d.T
    groups, data = dims // group, dims // 2
    count = T.dynamic("count")

    @T.prim_func
    def fp4_unpack(records: T.Tensor((count, data + groups), "uint8"), values: T.Tensor((count, dims), "float32")):
        with d.kernel(T.ceildiv(count, rows), threads=threads) as block:
            byte = d.scalar("int32")
            bits = d.scalar("int32")
            step = d.scalar("float32")
            pair = d.scalar("int32")
            for i, j in d.parallel(rows, data):
                r = block * rows + i
                if r < count:
                    byte[0] = T.cast(records[r, data + (2 * j) // group], "int32")
                    bits[0] = fp4.scale_bits(T, scale, byte[0])
                    step[0] = fp4.scale_value(T, scale, byte[0], T.reinterpret(bits[0], "float32"))
                    pair[0] = T.cast(records[r, j], "int32")
                    values[r, 2 * j] = fp4.code_value(T, pair[0] & 15) * step[0]
                    values[r, 2 * j + 1] = fp4.code_value(T, pair[0] >> 4) * step[0]

    return fp4_unpack


def bind(target: Target, *, dims: int, format: str, rows: int, threads: int) -> Callable[[Tensor], Tensor]:
    """The decoder of a cache format (``nvfp4_g16``, ``mxfp4_g32``): uint8 records [..., row bytes] to [..., dims]."""
    group, scale = fp4.GROUPS[format]
    body = get_fp4_unpack_kernel(target.dialect, dims=dims, group=group, scale=scale, rows=rows, threads=threads)
    kernel = target.compile(body)

    def fp4_unpack(records: Tensor) -> Tensor:
        values = torch.empty((*records.shape[:-1], dims), dtype=torch.float32, device=records.device)
        if records.numel():
            kernel(records.contiguous().view(-1, records.shape[-1]), values.view(-1, dims))
        return values

    return fp4_unpack
