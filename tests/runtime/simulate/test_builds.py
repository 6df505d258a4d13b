"""The same seed gives the same bytes at -O0, -O2 and under sanitizers, which also find nothing."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
import pytest
from simulated import parsed, random_events, random_lines

import deepinfer_gen.templates
from deepinfer_gen.codegen.compiler import FLAGS, find_compiler
from deepinfer_gen.runtime.simulate.run import simulate

from .conftest import EngineOf

TEMPLATES = Path(deepinfer_gen.templates.__path__[0])
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS")
RANKS = 2
CHILD = """
import importlib.util, sys
from dataclasses import replace
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from deepinfer_gen.runtime.loader import load_engine
from deepinfer_gen.runtime.simulate.fault_plan import read_fault_plan
from deepinfer_gen.runtime.simulate.run import simulate
from deepinfer_gen.runtime.simulate.workload import read_workload

folder, library, inputs, ranks = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
name = "other_build.deepinfer_engine"
spec = importlib.util.spec_from_loader(name, ExtensionFileLoader(name, library))
extension = importlib.util.module_from_spec(spec)
spec.loader.exec_module(extension)
engine = replace(load_engine(folder), extension=extension)
workload, _ = read_workload(inputs / "workload.jsonl", ranks)
plan = read_fault_plan(inputs / "faults.jsonl", workload, ranks)
simulate([engine] * ranks, workload, plan, seed=5, trace=sys.stdout)
"""


def build(folder: Path, out: Path, flags: tuple[str, ...]) -> Path:
    """The extension of a generated folder, compiled with other flags."""
    digest = out / "files_digest.cpp"
    digest.write_text(
        '#include "engine/engine_api.hpp"\nnamespace deepinfer { const char kFilesDigest[] = "other"; }\n'
    )
    library = out / "engine.so"
    common = [flag for flag in FLAGS if flag not in ("-O2", "-Werror")]
    includes = [f"-I{TEMPLATES}", f"-I{folder}", f"-isystem{pybind11.get_include()}"]
    includes.append(f"-isystem{sysconfig.get_path('include')}")
    sources = [TEMPLATES / "src" / "bindings.cpp", folder / "engine.cpp", digest]
    command = [*find_compiler().command, *common, *flags, *includes, "-shared", *map(str, sources), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def libraries() -> str:
    """What must be loaded before Python itself: the sanitizer, and the C++ runtime whose exceptions it watches."""
    command = find_compiler().command
    names = ("libasan.so", "libstdc++.so")
    files = [subprocess.check_output([*command, f"-print-file-name={name}"], text=True).strip() for name in names]
    return " ".join(files)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [("-O0",), ("-O2",), SANITIZED], ids=lambda flags: flags[0])
def test_other_builds_give_the_same_trace(flags: tuple[str, ...], engine_of: EngineOf, tmp_path: Path) -> None:
    engine = engine_of("recompute")
    rng = random.Random(4)
    lines = [line for _ in range(4) for line in random_lines(rng, RANKS, forks=True)]
    lines = list({line["id"]: line for line in lines if "fork_of" not in line}.values())
    workload, plan = parsed(tmp_path, lines, [*random_events(rng, lines, RANKS), {"event": "early"}], RANKS)
    expected = io.StringIO()
    simulate([engine] * RANKS, workload, plan, seed=5, trace=expected)
    library = build(engine.folder, tmp_path, flags)
    preload = {"LD_PRELOAD": libraries(), "ASAN_OPTIONS": "detect_leaks=0"} if flags is SANITIZED else {}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(engine.folder), str(library), str(tmp_path), str(RANKS)],
        env={**os.environ, **preload},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(expected.getvalue()) > 10_000
    assert done.stdout == expected.getvalue()
