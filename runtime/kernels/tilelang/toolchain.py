"""TileLang itself: imported when a kernel is first wanted, since that takes seconds, and checked for its version."""

from __future__ import annotations

import logging
import os
import shutil
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from deepinfer_gen.build_cache import cache_root
from deepinfer_gen.diagnostics import Diagnostic, InputError

PINNED = "0.1.15"
"""The release whose dialects the kernels are written in; pyproject.toml pins the same."""

_INSTALL = "python -m pip install 'deepinfer-gen[tilelang]'"


def installed() -> str:
    """Version of the installed TileLang, without importing it.

    Raises ``InputError`` where there is none (DI410) or another release (DI411).
    """
    try:
        found = version("tilelang")
    except PackageNotFoundError:
        raise _missing("the package tilelang is not installed") from None
    if found != PINNED:
        message = f"TileLang {found} is installed, the kernels are written for {PINNED}"
        raise InputError(Diagnostic("DI411", message, help=_INSTALL))
    return found


@cache
def tilelang() -> Any:
    """The module ``tilelang``; its kernel cache lies in the build cache unless ``TILELANG_CACHE_DIR`` says otherwise.

    Raises ``InputError`` where it is missing or incomplete (DI410) or of another release (DI411).
    """
    found = installed()
    os.environ.setdefault("TILELANG_CACHE_DIR", str(cache_root() / "tilelang"))
    try:
        module = import_module("tilelang")
    except ImportError as fault:
        raise _missing(f"TileLang {found} cannot be imported: {fault}") from fault
    # Every compilation, and every kernel found compiled, is announced on the stream of the engine's own output.
    for handler in logging.getLogger("tilelang").handlers:
        handler.setLevel(logging.ERROR)
    return module


def host_compiler() -> str:
    """Path of the C++ compiler that TileLang calls for the CPU; ``InputError`` (DI412) where there is none."""
    if path := shutil.which("g++"):
        return path
    message = "TileLang compiles its CPU kernels with g++, which is not on PATH"
    raise InputError(Diagnostic("DI412", message, help="install g++"))


def device_compiler() -> str:
    """Path of nvcc, on PATH or below ``$CUDA_HOME``; ``InputError`` (DI413) where there is none."""
    folders = [os.environ["CUDA_HOME"]] if "CUDA_HOME" in os.environ else []
    for path in (shutil.which("nvcc"), *(shutil.which("nvcc", path=f"{folder}/bin") for folder in folders)):
        if path:
            return path
    message = "TileLang compiles its CUDA kernels with nvcc, which is neither on PATH nor below CUDA_HOME"
    raise InputError(
        Diagnostic("DI413", message, help="install the CUDA toolkit 13.0, or set CUDA_HOME to where it is")
    )


def _missing(reason: str) -> InputError:
    return InputError(Diagnostic("DI410", f"the kernel table asks for TileLang kernels, but {reason}", help=_INSTALL))
