"""What building and running engines needs of a machine, and what of it is there. Nothing heavy is imported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepinfer_gen.codegen.compiler import INSTALL, LEAST_GCC, find_compiler
from deepinfer_gen.diagnostics import InputError

PYTHONS = ((3, 11), (3, 13))
"""Oldest and newest supported Python."""
_PROBE = "#include <concepts>\n#include <span>\ntemplate <std::integral T> T f(std::span<T> s) { return s[0]; }\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for: what was ``found`` (version, place or fault), and the ``remedy`` when it is not ``ok``."""

    what: str
    found: str
    ok: bool
    required: bool
    remedy: str


def examine() -> list[Finding]:
    """Look for everything; required things first."""
    required: tuple[tuple[str, Callable[[], tuple[str, bool]], str], ...] = (
        ("Python", _python, "install Python 3.11, 3.12 or 3.13"),
        ("C++20 compiler", _compiler, f"{INSTALL}, or set CXX to one"),
        ("Python headers", _headers, f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev"),
        ("pybind11", lambda: _package("pybind11"), "pip install 'pybind11>=3.0'"),
        ("torch", lambda: _package("torch"), "pip install torch --index-url https://download.pytorch.org/whl/cpu"),
        ("build cache", _cache, "set DEEPINFER_CACHE_DIR to a folder you may write"),
    )
    optional: tuple[tuple[str, Callable[[], tuple[str, bool]], str], ...] = (
        (
            "CUDA compiler",
            lambda: _program("nvcc", "--version"),
            "needed for CUDA targets only: install the CUDA toolkit",
        ),
        ("NVIDIA GPU", lambda: _program("nvidia-smi", "-L"), "needed to run CUDA targets only"),
        (
            "tilelang",
            lambda: _package("tilelang"),
            "needed for TileLang kernels only: pip install 'deepinfer-gen[tilelang]'",
        ),
    )
    return [
        Finding(what, *look(), needed, remedy)
        for needed, things in ((True, required), (False, optional))
        for what, look, remedy in things
    ]


def _python() -> tuple[str, bool]:
    here = sys.version_info[:2]
    return sys.version.split()[0], PYTHONS[0] <= here <= PYTHONS[1]


def _compiler() -> tuple[str, bool]:
    try:
        compiler = find_compiler()
    except InputError as fault:
        return fault.diagnostics[0].message, False
    version = re.search(r"\b(\d+)\.\d+", compiler.identity)
    if version and "clang" not in compiler.identity and int(version[1]) < LEAST_GCC:
        return f"{compiler.identity} is older than version {LEAST_GCC}", False
    command = [*compiler.command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    probe = subprocess.run(command, input=_PROBE, capture_output=True, text=True)
    return (
        (compiler.identity, True) if probe.returncode == 0 else (f"{compiler.identity} does not compile C++20", False)
    )


def _headers() -> tuple[str, bool]:
    path = Path(sysconfig.get_path("include")) / "Python.h"
    return (str(path), True) if path.is_file() else (f"{path} does not exist", False)


def _package(name: str) -> tuple[str, bool]:
    """A package by its metadata; importing it would take seconds."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name), True
    except PackageNotFoundError:
        return "not installed", False


def _cache() -> tuple[str, bool]:
    from deepinfer_gen.build_cache import cache_root
    from deepinfer_gen.codegen.text import write_bytes

    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as fault:
        return f"{root}: {fault.strerror}", False
    return f"{root}, {write_bytes(shutil.disk_usage(root).free)} free", True


def _program(name: str, argument: str) -> tuple[str, bool]:
    if shutil.which(name) is None:
        return f"{name} is not on the PATH", False
    done = subprocess.run([name, argument], capture_output=True, text=True, errors="replace")
    lines = [line for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    return (lines[-1] if lines else f"status {done.returncode}"), done.returncode == 0
