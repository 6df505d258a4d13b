"""Builds two small engines once per content of their sources, and simulates groups of ranks around them."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pybind11
import pytest

TESTS = Path(__file__).parent.parent
TEMPLATES = TESTS.parent / "templates"
EXAMPLE = TESTS / "templates" / "example"
CONFIGS = {
    "example": EXAMPLE / "engine_config.hpp",
    "speculative": TESTS / "sim" / "configs" / "speculative" / "engine_config.hpp",
}
# -O1 halves the compile time and keeps the tests fast enough.
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")


def load_sibling(name: str) -> ModuleType:
    """Import a helper module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"scheduler_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digest(*contents: bytes) -> str:
    return hashlib.sha256(b"\0".join(hashlib.sha256(c).digest() for c in contents)).hexdigest()[:24]


def build_engines(cache: Path) -> dict[str, Path]:
    """Compile what the cache lacks, everything at once; returns the folder of each engine's module."""
    include = (f"-I{TEMPLATES}", f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_paths()['include']}")
    headers = b"".join(path.read_bytes() for path in sorted((TEMPLATES / "engine").glob("*.hpp")))
    bindings = TEMPLATES / "src" / "bindings.cpp"
    common = digest(headers, bindings.read_bytes(), " ".join(FLAGS).encode(), pybind11.__version__.encode())
    bindings_object = cache / f"bindings-{common}.o"
    compilers, folders = [], {}
    if not bindings_object.exists():
        compilers.append(start(*FLAGS, *include, "-c", bindings, "-o", bindings_object))
    for name, config in CONFIGS.items():
        sources = {
            path.name: path.read_bytes() for path in sorted(EXAMPLE.iterdir()) if path.suffix in (".cpp", ".hpp")
        }
        sources["engine_config.hpp"] = config.read_bytes()
        folder = folders[name] = cache / f"{name}-{digest(common.encode(), *sources.values())}"
        if (folder / "deepinfer_engine.so").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, content in sources.items():
            (folder / file_name).write_bytes(content)
        compilers.extend(
            start(*FLAGS, *include, f"-I{folder}", "-c", folder / f"{unit}.cpp", "-o", folder / f"{unit}.o")
            for unit in ("engine", "files_digest")
        )
    finish(compilers)
    finish(
        start("-shared", folder / "engine.o", folder / "files_digest.o", bindings_object, "-o", module)
        for folder in folders.values()
        if not (module := folder / "deepinfer_engine.so").exists()
    )
    return folders


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["g++", *map(str, arguments)])


def finish(compilers: Any) -> None:
    codes = [compiler.wait() for compiler in compilers]
    assert not any(codes)


@pytest.fixture(scope="session")
def engines(pytestconfig: pytest.Config) -> dict[str, ModuleType]:
    """Both extension modules, loaded side by side into this process."""
    cache = pytestconfig.cache
    assert cache is not None
    modules = {}
    for name, folder in build_engines(cache.mkdir("scheduler_engines")).items():
        # pybind11 keeps modules by their full name, so each engine needs its own; the last part is the init symbol.
        module_name = f"{folder.name}.deepinfer_engine"
        spec = importlib.util.spec_from_file_location(module_name, folder / "deepinfer_engine.so")
        assert spec is not None
        assert spec.loader is not None
        modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    return modules


@pytest.fixture(scope="session")
def make_world(engines: dict[str, ModuleType]) -> Callable[..., Any]:
    """``make_world(engine, ranks=1, deferred=False, seed=0)``: see ``world.World``."""
    world = load_sibling("world")
    return lambda engine, **options: world.World(engines[engine], **options)
