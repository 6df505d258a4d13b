"""Building: from a generated folder (never from the spec) to ``engine.so`` in the build cache."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deepinfer_gen.build_cache import (
    CACHE_SCHEMA,
    ENGINE,
    BuildCache,
    CachedEngine,
    DamagedEntryError,
    Entry,
    python_abi,
)
from deepinfer_gen.canonical import digest_bytes, digest_json
from deepinfer_gen.codegen.compiler import FLAGS, Compiler, find_compiler
from deepinfer_gen.codegen.policies import by_header
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.engine_sources import BINDINGS, sources_digest, sources_of
from deepinfer_gen.manifest import GeneratedFolder, read_folder

_INCLUDE = re.compile(r'^#include "(engine/[^"]+)"', re.M)
_FILES_DIGEST_UNIT = "files_digest.cpp"
_FILES_DIGEST = """\
#include "engine/engine_api.hpp"

namespace deepinfer {{

const char kFilesDigest[] = "{files_digest}";

}}  // namespace deepinfer
"""
"""Written into the work folder, never into the generated one: a digest cannot lie in a file that it covers."""


@dataclass(frozen=True, slots=True)
class Built:
    """An engine in the cache; ``compiled`` is False when it was there already."""

    engine: CachedEngine
    compiled: bool


def build_folder(path: Path, cache: BuildCache | None = None) -> Built:
    """Build the engine of a generated folder, or find it in the cache.

    Raises ``InputError`` for a folder that differs from its manifest (DI200, DI201), for a policy that is not built yet
    (DI212), for a missing compiler (DI210) and for code that does not compile (DI211).
    """
    folder = read_folder(path)
    sources = sources_of(folder)
    _refuse_missing_policies(folder, sources)
    cache = cache or BuildCache()
    compiler = find_compiler()
    key = engine_key(folder, sources, compiler)
    if engine := _intact(cache, key):
        cache.point(engine.entry)
        return Built(engine, compiled=False)
    with cache.building(key) as work:
        if engine := _intact(cache, key):
            return Built(engine, compiled=False)
        objects = _objects(cache, folder, sources, compiler)
        return Built(_link(cache, key, folder, sources, compiler, objects, work), compiled=True)


def engine_key(folder: GeneratedFolder, sources: Mapping[str, bytes], compiler: Compiler) -> str:
    """The content address of the engine: everything that decides its bytes."""
    return digest_json({"folder": folder.manifest.files_digest, **_toolchain(sources, compiler)})


def _toolchain(sources: Mapping[str, bytes], compiler: Compiler) -> dict[str, Any]:
    return {
        "sources": sources_digest(sources),
        "compiler": [*compiler.command[1:], compiler.identity],
        "flags": list(FLAGS),
        "python": python_abi(),
        "pybind11": version("pybind11"),
    }


def _intact(cache: BuildCache, key: str) -> CachedEngine | None:
    """The cached engine; a damaged entry counts as absent, so that building again repairs it."""
    try:
        return cache.get(key)
    except DamagedEntryError:
        return None


def _objects(
    cache: BuildCache, folder: GeneratedFolder, sources: Mapping[str, bytes], compiler: Compiler
) -> list[Path]:
    """The two object files, compiled at the same time: the bindings, which all engines share, and this engine."""
    import pybind11

    includes = [f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_path('include')}"]
    own = {name: content for name, content in folder.contents.items() if name.endswith((".hpp", ".cpp"))}
    units = (
        _Unit(BINDINGS, f"bindings for {python_abi()}", sources, tuple(includes), "deepinfer_gen/templates"),
        _Unit("engine.cpp", folder.manifest.name, {**sources, **own}, (), str(folder.path)),
    )
    with ThreadPoolExecutor(len(units)) as pool:
        return list(pool.map(lambda unit: _object(cache, unit, sources, compiler), units))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A translation unit: ``file`` among ``contents``, and what its cached object and its errors are called."""

    file: str
    title: str
    contents: Mapping[str, bytes]
    includes: tuple[str, ...]
    shown_as: str


def _object(cache: BuildCache, unit: _Unit, sources: Mapping[str, bytes], compiler: Compiler) -> Path:
    digests = {name: digest_bytes(content) for name, content in unit.contents.items()}
    key = digest_json({"unit": unit.file, "contents": digests, **_toolchain(sources, compiler)})
    if found := cache.object_file(key):
        return found
    with cache.building(key) as work:
        if found := cache.object_file(key):
            return found
        _lay_out(work, unit.contents)
        arguments = [*FLAGS, "-I.", *unit.includes, "-c", unit.file, "-o", "unit.o"]
        compiler.run(arguments, work, cache.log_path(key), unit.shown_as)
        return cache.publish_object(key, unit.title, work / "unit.o")


def _link(
    cache: BuildCache,
    key: str,
    folder: GeneratedFolder,
    sources: Mapping[str, bytes],
    compiler: Compiler,
    objects: Sequence[Path],
    work: Path,
) -> CachedEngine:
    """Link the objects with the digest of the folder that they are the engine of."""
    manifest = folder.manifest
    digest_unit = _FILES_DIGEST.format(files_digest=manifest.files_digest).encode()
    _lay_out(work, {**sources, _FILES_DIGEST_UNIT: digest_unit})
    units = [_FILES_DIGEST_UNIT, *map(str, objects)]
    arguments = [*FLAGS, "-I.", "-shared", "-Wl,--build-id=none", *units, "-o", ENGINE]
    compiler.run(arguments, work, cache.log_path(key), str(folder.path))
    library = work / ENGINE
    entry = Entry(
        key=key,
        name=manifest.name,
        engine_sha256=digest_bytes(library.read_bytes()),
        files_digest=manifest.files_digest,
        plan_digest=manifest.plan_digest,
        sources_digest=sources_digest(sources),
        python_abi=python_abi(),
        compiler=compiler.identity,
        schema=CACHE_SCHEMA,
    )
    return cache.publish(entry, library)


def _lay_out(work: Path, contents: Mapping[str, bytes]) -> None:
    """Write what is compiled into the work folder: the verified bytes, wherever the folder itself goes meanwhile."""
    for name, content in contents.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _refuse_missing_policies(folder: GeneratedFolder, sources: Mapping[str, bytes]) -> None:
    """A composition that includes a policy header which does not exist yet is refused in the words of the spec."""
    included = _INCLUDE.findall(folder.text("scheduler.hpp"))
    values: dict[str, Any] = json.loads(folder.text("plan.json"))["values"]
    faults = []
    for header in included:
        policy = by_header(header)
        if header in sources or policy is None:
            continue
        source = str(values[policy.key]["source"]) or "default"
        message = f"{policy.key}: {policy.value} needs the {policy.title} policy, which is not built yet ({source})"
        remedy = "the folder can be checked, compared and drawn; only building and running it must wait"
        faults.append(Diagnostic("DI212", message, str(folder.path / "scheduler.hpp"), help=remedy))
    if faults:
        raise InputError(faults)
