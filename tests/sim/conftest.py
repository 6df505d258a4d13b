"""Two small engines from hand-written configs, built as any generated folder is, and groups of ranks around them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from built import shared_cache
from sample_folder import header
from scheduler_world import World

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.manifest import MANIFEST, manifest_text

TESTS = Path(__file__).parent.parent
EXAMPLE = TESTS / "templates" / "example"
CONFIGS = {
    "example": EXAMPLE / "engine_config.hpp",
    "speculative": TESTS / "sim" / "configs" / "speculative" / "engine_config.hpp",
}


def load_engine(name: str, parent: Path) -> ModuleType:
    """The extension module of the engine with the config ``name`` and the example's composition."""
    contents = {file: (EXAMPLE / file).read_bytes() for file in ("scheduler.hpp", "engine.cpp")}
    contents |= {"engine_config.hpp": CONFIGS[name].read_bytes(), "plan.json": b'{"values": {}}\n'}
    manifest = manifest_text(header(name=name, standalone=False), contents)
    folder = parent / name
    folder.mkdir()
    for file, content in {**contents, MANIFEST: manifest.encode()}.items():
        (folder / file).write_bytes(content)
    library = build_folder(folder, shared_cache()).engine.library
    # pybind11 keeps modules by their full name, so each engine needs its own; the last part is the init symbol.
    module_name = f"scheduler_tests.{name}.deepinfer_engine"
    spec = importlib.util.spec_from_loader(module_name, ExtensionFileLoader(module_name, str(library)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """Both extension modules, side by side in this process."""
    parent = tmp_path_factory.mktemp("scheduler_engines")
    return {name: load_engine(name, parent) for name in CONFIGS}


@pytest.fixture(scope="session")
def make_world(engines: dict[str, ModuleType]) -> Callable[..., World]:
    """``make_world(engine, ranks=1, deferred=False, seed=0)``."""
    return lambda engine, **options: World(engines[engine], **options)
