"""Small engines, each built when a test first asks for it, and groups of ranks around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from scheduler_configs import SPECS, build_library, load_module, load_spec
from scheduler_world import World

TESTS = Path(__file__).parent.parent
EXAMPLE = TESTS / "templates" / "example"
CONFIGS = {
    "example": EXAMPLE / "engine_config.hpp",
    "speculative": TESTS / "sim" / "configs" / "speculative" / "engine_config.hpp",
}


class Engines:
    """Extension modules by name, side by side in this process: the two above and those of the table."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.modules: dict[str, ModuleType] = {}

    def __getitem__(self, name: str) -> ModuleType:
        if name not in self.modules:
            self.modules[name] = self._written(name) if name in CONFIGS else load_spec(name, SPECS[name], self.parent)
        return self.modules[name]

    def _written(self, name: str) -> ModuleType:
        """The engine with the config ``name`` and the example's composition."""
        files = {file: (EXAMPLE / file).read_text(encoding="utf-8") for file in ("scheduler.hpp", "engine.cpp")}
        files["engine_config.hpp"] = CONFIGS[name].read_text(encoding="utf-8")
        return load_module(name, build_library(name, files, self.parent))


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """``engines[name]`` is the extension module."""
    return Engines(tmp_path_factory.mktemp("scheduler_engines"))


@pytest.fixture(scope="session")
def make_world(engines: Engines) -> Callable[..., World]:
    """``make_world(engine, ranks=1, deferred=False, seed=0, loads=True)``."""
    return lambda engine, **options: World(engines[engine], **options)
