"""Built engines for tests. Their cache outlives a run: it is content-addressed, so only changed code compiles again."""

from __future__ import annotations

from pathlib import Path

from shipped import shipped_plan

from deepinfer_gen.build_cache import BuildCache
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder

TEST_CACHE = Path(__file__).parents[2] / ".pytest_cache" / "engines"


def shared_cache() -> BuildCache:
    """The cache that the engine tests build in."""
    return BuildCache(TEST_CACHE)


def build_shipped(name: str, parent: Path) -> Path:
    """Generate the shipped spec ``name`` below ``parent`` and build it in the shared cache; gives the folder."""
    folder = write_folder(render(shipped_plan(name)), parent / name).path
    build_folder(folder, shared_cache())
    return folder
