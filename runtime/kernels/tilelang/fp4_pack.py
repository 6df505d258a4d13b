"""Encoding of a row of numbers as e2m1 codes with group scales: the records of compressed KV and of index keys."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang import fp4_values as fp4
from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect


def get_fp4_pack_kernel(d: Dialect, *, dims: int, group: int, scale: str, rows: int, threads: int) -> Any:
    """``values`` float32 [count, dims] to ``records`` uint8 [count, dims / 2 + dims / group], ``rows`` a block.

    A record is its codes, two a byte with the even element low, then one ``scale`` byte (``e4m3`` or ``ue8m0``) for
    each group.
    """
    T = d.T
    groups, pairs = dims // group, group // 2
    data = dims // 2
    count = T.dynamic("count")

    @T.prim_func
    def fp4_pack(values: T.Tensor((count, dims), "float32"), records: T.Tensor((count, data + groups), "uint8")):
        with d.kernel(T.ceildiv(count, rows), threads=threads) as block:
            largest = d.scalar("int32")
            quotient = d.scalar("float32")
            byte = d.scalar("int32")
            bits = d.scalar("int32")
            step = d.scalar("float32")
            for i, g in d.parallel(rows, groups):
                r = block * rows + i
                if r < count:
                    largest[0] = 0
                    for j in T.serial(group):
                        largest[0] = T.max(largest[0], fp4.magnitude_bits(T, values[r, g * group + j]))
                    quotient[0] = fp4.scale_quotient(T, T.reinterpret(largest[0], "float32"))
                    byte[0] = fp4.scale_byte(T, scale, largest[0], T.reinterpret(quotient[0], "int32"))
                    records[r, data + g] = T.cast(byte[0], "uint8")
                    bits[0] = fp4.scale_bits(T, scale, byte[0])
                    step[0] = fp4.scale_value(T, scale, byte[0], T.reinterpret(bits[0], "float32"))
                    for j in T.serial(pairs):
                        low = fp4.code(T, scale, values[r, g * group + 2 * j], byte[0], step[0])
                        high = fp4.code(T, scale, values[r, g * group + 2 * j + 1], byte[0], step[0])
                        records[r, g * pairs + j] = T.cast(low | (high << 4), "uint8")

    return fp4_pack


def bind(target: Target, *, dims: int, format: str, rows: int, threads: int) -> Callable[[Tensor], Tensor]:
    """The encoder of a cache format (``nvfp4_g16``, ``mxfp4_g32``) for rows of ``dims`` numbers.

    Floats [..., dims] to uint8 records [..., row bytes].
    """
    group, scale = fp4.GROUPS[format]
    body = get_fp4_pack_kernel(target.dialect, dims=dims, group=group, scale=scale, rows=rows, threads=threads)
    kernel = target.compile(body)

    def fp4_pack(values: Tensor) -> Tensor:
        records = torch.empty((*values.shape[:-1], dims // 2 + dims // group), dtype=torch.uint8, device=values.device)
        if records.numel():
            kernel(values.to(torch.float32).contiguous().view(-1, dims), records.view(-1, records.shape[-1]))
        return records

    return fp4_pack
