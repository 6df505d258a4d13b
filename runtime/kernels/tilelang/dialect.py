"""The language that kernel bodies are written in: what CUDA and the CPU target of TileLang spell differently.

The CPU target (C source) takes reductions and staging buffers in scope ``local`` only, no parallel loop over such a
buffer, no thread count, and neither bfloat16 nor 8-bit floats: kernels handle those as raw integers. A body that keeps
to this class is the same text for both.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from deepinfer_gen.runtime.kernels.tilelang.toolchain import tilelang

_MODULES = {"cpu": "tilelang.cpu.language", "cuda": "tilelang.language"}


class Dialect:
    """``T`` is TileLang's language module for ``backend`` (``cpu`` or ``cuda``)."""

    __slots__ = ("T", "cpu")

    def __init__(self, backend: str) -> None:
        tilelang()
        self.T: Final[Any] = import_module(_MODULES[backend])
        self.cpu: Final = backend == "cpu"

    def kernel(self, *grid: Any, threads: int) -> Any:
        """A launch over ``grid``; the CPU runs it as a loop without threads."""
        return self.T.Kernel(*grid) if self.cpu else self.T.Kernel(*grid, threads=threads)

    def parallel(self, *extents: Any) -> Any:
        """A loop nest whose iterations are independent."""
        if not self.cpu:
            return self.T.Parallel(*extents)
        return self.T.serial(extents[0]) if len(extents) == 1 else self.T.grid(*extents)

    def staged(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A buffer that all threads of a block see."""
        return self.T.alloc_local(shape, dtype) if self.cpu else self.T.alloc_shared(shape, dtype)

    def reduced(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Operand or result of a reduction over a block.

        Copy a result to a ``staged`` buffer before using it: TileLang runs a single store that reads a reduction's
        result in one thread of the block, and does not say so.
        """
        return self.T.alloc_local(shape, dtype) if self.cpu else self.T.alloc_fragment(shape, dtype)

    def scalar(self, dtype: str) -> Any:
        """One value per thread, ``[0]``."""
        return self.T.alloc_local((1,), dtype)
