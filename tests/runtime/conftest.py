"""One compiled tiny engine for all runtime tests, with its real model and with a scripted one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from built import build_tiny
from scripted_model import ScriptedModel

from deepinfer_gen.runtime.llm import LLM


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated folder of the tests' own engine, built (the build cache makes that quick the second time)."""
    return build_tiny(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="session")
def llm(tiny_engine: Path) -> Iterator[LLM]:
    torch.set_num_threads(1)
    with LLM(engine=tiny_engine) as made:
        yield made


@pytest.fixture
def scripted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The tiny engine with the scripted model: the compiled scheduler, caches and sampler are the real ones."""
    monkeypatch.setattr(llm.llm_engine._worker, "_model", ScriptedModel())
    return llm
