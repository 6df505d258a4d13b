"""The tiny model with its hand-written plan, drivers over fresh caches, and the reference's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from one_thread import one_thread as one_thread
from paged_driver import UNWRITTEN, Driver
from tiny_by_hand import SMALL_TILES, TILES, TinyEngine, kernel_table, tiny_engine

import deepinfer_gen.specs
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.plan_types import YocoPlan

ORACLE = Path(__file__).parents[2] / "oracle"


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return Path(next(iter(deepinfer_gen.specs.__path__))) / "models" / "tiny-v41"


@pytest.fixture(scope="session")
def oracle() -> Mapping[str, Any]:
    with np.load(ORACLE / "reference_f32nq.npz") as data:
        return dict(data)


@pytest.fixture(scope="session")
def layer_oracle() -> Mapping[str, Any]:
    with np.load(ORACLE / "layers_p129_f32nq.npz") as data:
        return dict(data)


@pytest.fixture(scope="session")
def engine(oracle: Mapping[str, Any]) -> TinyEngine:
    return tiny_engine(oracle)


@pytest.fixture(scope="session")
def model(engine: TinyEngine, checkpoint: Path) -> Model:
    return load_model(engine.plan, kernel_table(TILES), checkpoint)


@pytest.fixture
def make_driver(model: Model, engine: TinyEngine) -> Any:
    """``make_driver(engine=..., model=...)`` gives a fresh driver over fresh caches."""

    def make(engine: TinyEngine = engine, model: Model = model) -> Driver:
        return Driver(model, engine.layout)

    return make


@pytest.fixture(scope="session")
def truncated(oracle: Mapping[str, Any], checkpoint: Path) -> Callable[..., Driver]:
    """``truncated(mode, cut, keep)`` gives a driver over caches that earlier owners left full of NaN.

    With ``targets`` it drafts five tokens from the features of these layers.
    """

    @cache
    def build(mode: str, cut: int, keep: int, targets: tuple[int, ...]) -> tuple[TinyEngine, Model]:
        engine = tiny_engine(oracle, nextn=5 if targets else 0, yoco=YocoPlan(mode, cut, keep))
        plan = engine.plan
        if plan.draft:
            plan = replace(plan, draft=replace(plan.draft, target_layers=targets))
        return engine, load_model(plan, kernel_table(TILES), checkpoint)

    def make(mode: str = "compact", cut: int = 6, keep: int = 140, targets: tuple[int, ...] = ()) -> Driver:
        engine, model = build(mode, cut, keep, targets)
        return Driver(model, engine.layout, fill=UNWRITTEN)

    return make


@pytest.fixture(scope="session")
def helpers() -> SimpleNamespace:
    """The plan builders, for tests that change them."""
    return SimpleNamespace(
        TinyEngine=TinyEngine,
        tiny_engine=tiny_engine,
        kernel_table=kernel_table,
        tiles=TILES,
        small_tiles=SMALL_TILES,
        replace=replace,
    )


@pytest.fixture(scope="session")
def drafts() -> Mapping[str, Any]:
    """The reference's drafts and speculative transcripts."""
    with np.load(ORACLE / "drafts_f32nq.npz") as data:
        return dict(data)


@pytest.fixture(scope="session")
def drafting_engine(oracle: Mapping[str, Any]) -> TinyEngine:
    return tiny_engine(oracle, nextn=5)


@pytest.fixture(scope="session")
def drafting_model(drafting_engine: TinyEngine, checkpoint: Path) -> Model:
    return load_model(drafting_engine.plan, kernel_table(TILES), checkpoint)


@pytest.fixture
def make_drafting_driver(drafting_model: Model, drafting_engine: TinyEngine) -> Any:
    """Fresh drivers over fresh caches of the engine that drafts."""
    return lambda: Driver(drafting_model, drafting_engine.layout)
