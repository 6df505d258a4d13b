"""Cutting an operator's leading axis into the block size that the kernel table gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def tiles(length: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``length`` in order."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def tiled(function: Callable[..., Tensor], size: int, *tensors: Tensor) -> Tensor:
    """``function`` of ``size`` rows of all ``tensors`` at a time, results joined; one call when they fit one block."""
    count = tensors[0].shape[0]
    if count <= size:
        return function(*tensors)
    return torch.cat([function(*(x[t] for x in tensors)) for t in tiles(count, size)])
