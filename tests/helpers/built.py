"""Built engines for tests. Their cache outlives a run: it is content-addressed, so only changed code compiles again."""

from __future__ import annotations

from pathlib import Path

from tiny_spec import TINY, tiny_plan

from deepinfer_gen.build_cache import BuildCache
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder

TEST_CACHE = Path(__file__).parents[2] / ".pytest_cache" / "engines"


def shared_cache() -> BuildCache:
    """The cache that the engine tests build in."""
    return BuildCache(TEST_CACHE)


def generate_tiny(parent: Path) -> Path:
    """Generate the tests' own engine below ``parent``; gives the folder."""
    return write_folder(render(tiny_plan()), parent / TINY).path


def build_tiny(parent: Path) -> Path:
    """The folder of ``generate_tiny``, its engine built in the shared cache."""
    folder = generate_tiny(parent)
    build_folder(folder, shared_cache())
    return folder
