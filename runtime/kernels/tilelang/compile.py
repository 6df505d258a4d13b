"""From a kernel body to something that runs, or that is known to compile without the device it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect
from deepinfer_gen.runtime.kernels.tilelang.toolchain import device_compiler, host_compiler, tilelang

_EXACT = ("-O3", "-ffp-contract=off", "-fno-strict-aliasing")
"""TileLang calls g++ without optimisation. It reinterprets floats through pointers; no product may be fused."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where kernels run: ``cpu``, or ``cuda`` for the GPU that is present."""

    backend: str

    @property
    def dialect(self) -> Dialect:
        """The language of kernel bodies for this target."""
        return Dialect(self.backend)

    def compile(self, body: Any) -> Callable[..., None]:
        """A callable that takes tensors and numbers in the order of the body's arguments and writes its outputs."""
        if self.backend == "cpu":
            host_compiler()
            kernel: Callable[..., None] = tilelang().compile(
                body, target="c", execution_backend="cython", compile_flags=list(_EXACT)
            )
        else:
            device_compiler()
            kernel = tilelang().compile(body, target="cuda", execution_backend="tvm_ffi")
        return kernel


def lower_cuda(body: Any, arch: str) -> str:
    """CUDA source of a body for ``arch`` (``sm_90a``); needs no GPU."""
    module = tilelang()
    target = {"kind": "cuda", "arch": arch}
    with module.tvm.target.Target(target):
        return str(module.lower(body, target=target).kernel_source)


def cubin(source: str, arch: str) -> bytes:
    """Device code of CUDA source; needs nvcc and no GPU."""
    device_compiler()
    env, nvcc = import_module("tilelang.env"), import_module("tilelang.contrib.nvcc")
    generate = ["-gencode", f"arch=compute_{arch.removeprefix('sm_')},code={arch}"]
    include = [f"-I{env.TILELANG_TEMPLATE_PATH}", f"-I{env.CUTLASS_INCLUDE_DIR}"]
    return bytes(nvcc.compile_cuda(source, "cubin", generate, options=["-std=c++20", *include]))


def lower_ascend(body: Any) -> str:
    """AscendC source of a body in the Ascend dialect; compiling it needs CANN."""
    module = tilelang()
    with module.tvm.target.Target({"kind": "ascend"}):
        return str(module.lower(body, target="ascend").kernel_source)
