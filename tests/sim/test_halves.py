"""PROMPT and COMPLETION engines contain their half only: no symbol and no policy header of the other one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scheduler_configs import SPECS, engine_files

import deepinfer_gen.templates
from deepinfer_gen.codegen.compiler import FLAGS, find_compiler

TEMPLATES = Path(deepinfer_gen.templates.__path__[0])
UNOPTIMISED = [*(flag for flag in FLAGS if not flag.startswith("-O")), "-O0"]  # nothing is inlined away

# Engine of the table -> names of the other half, names that show that the search finds something, other headers.
HALVES = {
    "prompt": (
        ("Decode<", "Capacity<", "Fork<", "Incoming<", "FixedVerification", "NormalStep", "OutputLengthOrder",
         "VarlenVerification", "CompletionStep"),
        ("Prefill<", "ChunkCut<", "PromptStep"),
        ("decode", "incoming", "verify_fixed", "verify_varlen", "survival", "split", "cost_model", "estimators",
         "order_output_length", "step_normal", "step_completion"),
    ),
    "completion": (
        ("Prefill<", "ChunkCut<", "NormalStep", "PromptStep", "VarlenVerification"),
        ("Decode<", "Capacity<", "Fork<", "Incoming<", "FixedVerification", "CompletionStep"),
        ("prefill", "step_normal", "step_prompt", "verify_varlen", "cost_model", "estimators"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=HALVES)
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, set[str]]:
    """Name of the engine, the demangled symbols of its unoptimised object, and the engine headers it includes."""
    name = str(request.param)
    folder = tmp_path_factory.mktemp(name)
    for file, text in engine_files(SPECS[name], name).items():
        (folder / file).write_text(text, encoding="utf-8")
    command = [*find_compiler().command, *UNOPTIMISED, "-I.", f"-I{TEMPLATES}", "-c", "engine.cpp"]
    subprocess.run([*command, "-o", "engine.o"], cwd=folder, check=True)
    symbols = subprocess.run(["nm", "-C", "engine.o"], cwd=folder, check=True, capture_output=True, text=True).stdout
    included = subprocess.run([*command, "-M"], cwd=folder, check=True, capture_output=True, text=True).stdout
    headers = {Path(word).stem for word in included.split() if "/engine/" in word and word.endswith(".hpp")}
    return name, symbols, headers


def test_its_object_holds_no_symbol_of_the_other_half(half: tuple[str, str, set[str]]) -> None:
    name, symbols, _ = half
    absent, present, _ = HALVES[name]
    for word in present:
        assert f"deepinfer::{word}" in symbols, "the search finds what is there"
    found = [line for line in symbols.splitlines() if any(f"deepinfer::{word}" in line for word in absent)]
    assert found == []
    assert "Verification" not in symbols or name == "completion"


def test_it_includes_no_policy_of_the_other_half(half: tuple[str, str, set[str]]) -> None:
    name, _, headers = half
    assert "core" in headers
    assert headers & set(HALVES[name][2]) == set()
