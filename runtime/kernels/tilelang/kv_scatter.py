"""Paged writes of encoded cache rows: record i goes to row ``row[i]`` of unit (block or slot) ``unit[i]``.

Where a record is stored in two parts, its numbers and its scales, each part is one call: it takes its columns of the
records and has its own strides in the cache.
"""

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect

_ELEMENTS = {4: ("int32", torch.int32), 1: ("uint8", torch.uint8)}


def get_kv_scatter_kernel(d: Dialect, *, width: int, element: str, threads: int) -> Any:
    """Rows of ``width`` elements; places and strides are runtime numbers, in elements.

    ``records`` is read at ``source + i * source_stride``, ``cache`` written at ``offset + unit[i] * unit_stride +
    row[i] * row_stride``; both are flat. A place outside ``cache`` is not written.
    """
    T = d.T
    count, held, size = T.dynamic("count"), T.dynamic("held", "int64"), T.dynamic("size", "int64")
    number = T.int64

    @T.prim_func
    def kv_scatter(
        records: T.Tensor((held,), element),
        unit: T.Tensor((count,), "int64"),
        row: T.Tensor((count,), "int64"),
        cache: T.Tensor((size,), element),
        source: number,
        source_stride: number,
        offset: number,
        unit_stride: number,
        row_stride: number,
    ):
        with d.kernel(count, threads=threads) as i:
            for j in d.parallel(width):
                place = offset + unit[i] * unit_stride + row[i] * row_stride + j
                if place >= 0 and place < size:
                    cache[place] = records[source + i * source_stride + j]

    return kv_scatter


def bind(target: Target, *, threads: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    """``grid.index_put_((unit, row), stored)`` for ``grid`` [units, rows, width] and ``stored`` [N, width] of one type.

    Both may be views: part of a record, or rows that lie apart. A kernel is compiled for each width in bytes, and
    copies four at a time where all distances allow it. Of equal places, which padding rows have, any record stays.
    """

    @cache
    def compiled(width: int, size: int) -> Callable[..., None]:
        body = get_kv_scatter_kernel(target.dialect, width=width, element=_ELEMENTS[size][0], threads=threads)
        return target.compile(body)

    def kv_scatter(grid: Tensor, unit: Tensor, row: Tensor, stored: Tensor) -> None:
        if grid.dtype != stored.dtype or grid.shape[2] != stored.shape[1] or grid.stride(2) != 1:
            raise ValueError(
                f"records {tuple(stored.shape)} of {stored.dtype} into rows {tuple(grid.shape)} of {grid.dtype} with"
                f" strides {grid.stride()}"
            )
        if not stored.shape[0]:
            return
        if stored.stride(1) != 1:
            stored = stored.contiguous()
        grid, stored = grid.view(torch.uint8), stored.view(torch.uint8)
        width = stored.shape[1]
        distances = (
            stored.storage_offset(), stored.stride(0), grid.storage_offset(), grid.stride(0), grid.stride(1),
        )  # fmt: skip
        whole = (stored.untyped_storage().nbytes(), grid.untyped_storage().nbytes())
        size = 4 if gcd(width, *distances, *whole) % 4 == 0 else 1
        compiled(width // size, size)(
            _flat(stored, size), unit, row, _flat(grid, size), *(distance // size for distance in distances)
        )

    return kv_scatter


def _flat(view: Tensor, size: int) -> Tensor:
    """All elements of a view's storage, ``size`` bytes each."""
    everything = view.as_strided((view.untyped_storage().nbytes(),), (1,), 0)
    return everything.view(_ELEMENTS[size][1])
