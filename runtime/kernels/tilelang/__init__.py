"""TileLang kernels behind the names of the kernel table, for CUDA GPUs and, from the same text, for the CPU.

One kernel a file, named like it: ``get_NAME_kernel(dialect, **static)`` gives its body, ``bind(target, **static)`` a
callable with the arguments and the result of the torch reference. TileLang itself (the extra ``tilelang``) is imported
by the first call of ``implementation``. ``ascend`` holds the bodies that have an Ascend form; those are only lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from deepinfer_gen.diagnostics import Diagnostic, InputError

NAMES: Final = (
    "fp4_pack", "fp4_unpack", "kv_scatter", "mirror_cp", "top_k", "top_p", "varlen_split", "zos_fix",
)  # fmt: skip
BACKENDS: Final = {"tilelang_cpu": "cpu", "tilelang_cuda": "cuda"}


def implementation(name: str, kind: str, static: Mapping[str, Any]) -> Callable[..., Any]:
    """The callable of kernel ``name`` in the implementation ``kind``, compiled with its arguments ``static``.

    Raises ``InputError`` for a kernel or an implementation that is not built (DI414), and where TileLang (DI410, DI411)
    or the compiler that it calls (DI412, DI413) is missing.
    """
    if name not in NAMES:
        raise _not_built(f"TileLang kernel '{name}'", NAMES)
    if kind not in BACKENDS:
        raise _not_built(f"implementation '{kind}' of kernel '{name}'", BACKENDS)
    from deepinfer_gen.runtime.kernels.tilelang.compile import Target

    module = import_module(f"{__name__}.{name}")
    bound: Callable[..., Any] = module.bind(Target(BACKENDS[kind]), **static)
    return bound


def _not_built(what: str, built: Mapping[str, str] | tuple[str, ...]) -> InputError:
    message = f"the kernel table asks for the {what}, which is not built (built: {', '.join(sorted(built))})"
    return InputError(
        Diagnostic("DI414", message, file="kernels.py", help="generate the engine again with this version")
    )
