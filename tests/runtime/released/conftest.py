"""Plans of the released model, made by the compiler in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from one_thread import one_thread as one_thread
from released_scene import Parts, released

from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.plan_types import ModelPlan


@dataclass(frozen=True)
class Planned:
    """What the runtime reads of one engine: the values of plan.json and the model plan."""

    values: dict[str, Any]
    model: ModelPlan


def planned(spec: str) -> Planned:
    plan = plan_spec(spec)
    return Planned(plan.as_dict()["values"], model_plan(plan))


@pytest.fixture(scope="session")
def decode_engine() -> Planned:
    """64 ranks that decode with five drafts; nothing is truncated."""
    return planned("v41-flash-decode-ep64")


@pytest.fixture(scope="session")
def normal_engine() -> Planned:
    """Eight ranks; from layer 20 on a prompt's last 140 rows run."""
    return planned("v41-flash-normal-ep8")


@pytest.fixture(scope="session")
def widths(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Layers of the released widths in float32, caches too, so that a float64 computation can be compared closely."""
    return released(tmp_path_factory.mktemp("released"), "float32_unquantized")
