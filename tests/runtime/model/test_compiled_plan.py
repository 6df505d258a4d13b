"""The compiler's plan of the tiny model against the hand-written one, and the reference's logits with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_spec import tiny_plan

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.model.model import load_model


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tiny_plan()


def test_constants_roles_and_tables(plan: Plan, engine: Any) -> None:
    found, expected = model_plan(plan), engine.plan
    changed = {k for k in expected.constants if found.constants[k] != expected.constants[k]}
    assert found.constants.keys() == expected.constants.keys()
    assert changed <= {"max_positions"}
    assert found.rope == expected.rope
    for one, other in zip(found.layers, expected.layers, strict=True):
        for name in (
            "index",
            "prefix",
            "ratio",
            "experts",
            "experts_per_token",
            "rope",
            "kv_source",
            "index_source",
            "candidate_role",
            "engram",
            "stored",
        ):
            assert getattr(one, name) == getattr(other, name), f"layer {one.index}: {name}"


def test_the_compiled_engine_gives_the_reference_logits(
    plan: Plan, make_driver: Any, checkpoint: Path, helpers: Any, oracle: Mapping[str, Any]
) -> None:
    compiled = helpers.TinyEngine(model_plan(plan), layout_content(plan))
    driver = make_driver(compiled, load_model(compiled.plan, kernels(plan), checkpoint))
    logits = driver.prefill(driver.add(oracle["p300_ids"]), 64).numpy()
    np.testing.assert_allclose(logits, oracle["p300_logits"], rtol=0, atol=1e-4)
