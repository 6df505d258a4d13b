"""Cutting an operator's leading axis into the block size that the kernel table gives it."""

from __future__ import annotations

from collections.abc import Iterator


def tiles(length: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``length`` in order; one empty slice when there is nothing."""
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))
