"""Loading an engine: verify the generated folder and the built extension in full, then link them.

Nothing of either is executed before everything was verified. Every refusal names the file at fault and the one command
that repairs it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from deepinfer_gen.build_cache import BuildCache, CachedEngine, DamagedEntryError, python_abi
from deepinfer_gen.canonical import digest_plan
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.engine_sources import sources_digest, sources_of
from deepinfer_gen.manifest import GeneratedFolder, read_folder
from deepinfer_gen.runtime.consistency import contradictions
from deepinfer_gen.runtime.plan_types import KernelConfig, ModelPlan

EXTENSION = "deepinfer_engine"


@dataclass(frozen=True, slots=True)
class VerifiedEngine:
    """A folder and its built extension whose bytes are as published; nothing of them was executed yet."""

    folder: GeneratedFolder
    cached: CachedEngine


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A linked engine: the Plan, the tables of the generated folder, and the scheduler's extension module.

    ``plan`` maps each Plan key to a mapping with value, unit, formula, inputs, source and why. ``layout`` and
    ``graphs`` are the parsed JSON files (docs/formats.md, section 2).
    """

    name: str
    folder: Path
    plan: Mapping[str, Mapping[str, Any]]
    layout: Mapping[str, Any]
    graphs: Mapping[str, Any]
    kernels: Mapping[str, KernelConfig]
    model: ModelPlan
    extension: ModuleType

    def value(self, key: str) -> Any:
        """The Plan value under ``key``, in its JSON form."""
        return self.plan[key]["value"]


def load_engine(path: Path | str, cache: BuildCache | None = None) -> LoadedEngine:
    """Verify and link the engine of a generated folder.

    Raises ``InputError``: the folder is not as its manifest says (DI200, DI201), there is no engine for it (DI220), the
    built engine is damaged (DI221), it was built from something else (DI222), or the generated files contradict each
    other (DI223).
    """
    verified = verify_engine(Path(path), cache)
    folder = verified.folder
    model = _defined(folder, "model_plan.py", "MODEL", ModelPlan)
    kernels = _defined(folder, "kernels.py", "KERNELS", dict)
    extension = _load_extension(verified)
    tables = {name: json.loads(folder.text(f"{name}.json")) for name in ("plan", "layout", "graphs", "kernels")}
    faults = contradictions(
        constants=extension.constants(),
        plan_digest=folder.manifest.plan_digest,
        layout=tables["layout"],
        graphs=tables["graphs"],
        kernel_table=tables["kernels"]["kernels"],
        kernels=kernels,
        model=model,
    )
    if faults:
        remedy = f"write the folder anew: {folder.regenerate}"
        raise InputError(Diagnostic("DI223", text, str(folder.path / name), help=remedy) for name, text in faults)
    return LoadedEngine(
        name=folder.manifest.name,
        folder=folder.path,
        plan=MappingProxyType(tables["plan"]["values"]),
        layout=MappingProxyType(tables["layout"]),
        graphs=MappingProxyType(tables["graphs"]),
        kernels=MappingProxyType(kernels),
        model=model,
        extension=extension,
    )


def verify_engine(path: Path, cache: BuildCache | None = None) -> VerifiedEngine:
    """Verify every byte of a generated folder and of its built engine, without executing any."""
    folder = read_folder(path)
    _verify_plan(folder)
    rebuild = f"deepinfer-gen build {path}"
    try:
        found = (cache or BuildCache()).find(folder.manifest.files_digest, sources_digest(sources_of(folder)))
    except DamagedEntryError as fault:
        message = f"the built engine of {folder.manifest.name} is damaged: {fault.path.name} {fault}"
        raise InputError(Diagnostic("DI221", message, str(fault.path), help=f"build it again: {rebuild}")) from fault
    if found is None:
        message = f"{folder.manifest.name} is not built for this folder's files and {python_abi()}"
        raise InputError(Diagnostic("DI220", message, str(path), help=f"build it: {rebuild}"))
    if found.entry.plan_digest != folder.manifest.plan_digest:
        message = f"the built engine of {folder.manifest.name} belongs to another plan"
        raise InputError(Diagnostic("DI222", message, str(found.library), help=f"build it again: {rebuild}"))
    return VerifiedEngine(folder, found)


def _verify_plan(folder: GeneratedFolder) -> None:
    """plan.json takes no part in the build, so its values are tied to the plan digest here."""
    plan = json.loads(folder.text("plan.json"))
    digest = digest_plan({key: (entry["value"], entry["unit"]) for key, entry in plan["values"].items()})
    if {digest, plan["plan_digest"]} != {folder.manifest.plan_digest}:
        message = f"plan.json holds plan {digest[:12]}, manifest.json names {folder.manifest.plan_digest[:12]}"
        remedy = f"write the folder anew: {folder.regenerate}"
        raise InputError(Diagnostic("DI201", message, str(folder.path / "plan.json"), help=remedy))


def _defined(folder: GeneratedFolder, name: str, variable: str, kind: type) -> Any:
    """Execute a verified Python file of the folder and take one variable of it."""
    namespace: dict[str, Any] = {"__name__": f"{folder.manifest.name}.{name.removesuffix('.py')}"}
    exec(compile(folder.text(name), str(folder.path / name), "exec"), namespace)
    value = namespace.get(variable)
    if not isinstance(value, kind):
        remedy = f"write the folder anew: {folder.regenerate}"
        message = f"{name} does not define {variable} as a {kind.__name__}"
        raise InputError(Diagnostic("DI223", message, str(folder.path / name), help=remedy))
    return value


def _load_extension(verified: VerifiedEngine) -> ModuleType:
    """Import ``engine.so`` and check the digests that were compiled into it."""
    library, manifest = verified.cached.library, verified.folder.manifest
    # pybind11 keeps one module per full name in a process, so each engine gets a name of its own.
    name = f"deepinfer_engines.{verified.cached.entry.key}.{EXTENSION}"
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_file_location(name, library, loader=loader)
    rebuild = f"build it again: deepinfer-gen build {verified.folder.path}"
    if spec is None:
        raise InputError(Diagnostic("DI221", "engine.so is no extension module", str(library), help=rebuild))
    try:
        extension = importlib.util.module_from_spec(spec)
        loader.exec_module(extension)
    except ImportError as fault:
        message = f"engine.so cannot be loaded: {fault}"
        raise InputError(Diagnostic("DI221", message, str(library), help=rebuild)) from fault
    for digest in ("plan_digest", "files_digest"):
        carried, expected = getattr(extension, digest), getattr(manifest, digest)
        if carried != expected:
            message = f"engine.so carries {digest} {carried[:12]}, manifest.json names {expected[:12]}"
            raise InputError(Diagnostic("DI222", message, str(library), help=rebuild))
    return extension
