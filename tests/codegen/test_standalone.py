"""A standalone folder builds with one compiler command and without deepinfer-gen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from built import TEST_CACHE, shared_cache
from shipped import shipped_plan

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.engine_sources import installed_sources, sources_of
from deepinfer_gen.manifest import read_folder

TINY = "tiny-cpu"

PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import deepinfer_engine, json
assert not [name for name in sys.modules if name.startswith("deepinfer_gen")]
print(json.dumps([deepinfer_engine.files_digest, deepinfer_engine.constants(), deepinfer_engine.Scheduler().stats()]))
"""


@pytest.mark.long
def test_build_sh_makes_the_extension(tmp_path: Path) -> None:
    """The output is kept by content between runs, since compiling the bindings takes most of a test run."""
    plan = shipped_plan(TINY)
    folder = write_folder(render(plan, standalone=True), tmp_path / TINY).path
    digest = read_folder(folder).manifest.files_digest
    out = TEST_CACHE / "standalone" / digest
    if not list(out.glob("deepinfer_engine*.so")):
        subprocess.run(
            ["sh", "build.sh", str(out)], cwd=folder, env={**os.environ, "PYTHON": sys.executable}, check=True
        )
    probe = [sys.executable, "-c", PROBE, str(out)]
    carried, constants, _ = json.loads(subprocess.run(probe, check=True, capture_output=True, cwd=out).stdout)
    assert carried == digest
    assert constants["kPlanDigest"] == plan.plan_digest
    assert constants["kGraphSizes"] == list(plan.integers("graphs.sizes"))
    read_folder(folder)  # building left the folder as it was


@pytest.mark.long
def test_a_standalone_folder_is_built_from_its_own_sources(tmp_path: Path) -> None:
    folder = write_folder(render(shipped_plan(TINY), standalone=True), tmp_path / TINY).path
    assert sources_of(read_folder(folder)) == installed_sources()
    assert build_folder(folder, shared_cache()).engine.entry.files_digest == read_folder(folder).manifest.files_digest
