"""The tiny model as the compiler plans it, with some spec fields changed; no C++ is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from spec_plan import spec_plan

import deepinfer_gen.specs
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.plan_types import ModelPlan

SPECS = Path(next(iter(deepinfer_gen.specs.__path__)))


@dataclass(frozen=True)
class CompiledTiny:
    """What the model needs of a generated folder, and the model."""

    plan: ModelPlan
    layout: dict[str, Any]
    model: Model


def compiled_tiny(folder: Path, **fields: Any) -> CompiledTiny:
    """``tiny-cpu`` with ``section__field=value`` changed; its spec is written into ``folder``."""
    plan = spec_plan(folder, YAML(typ="safe").load(SPECS / "tiny-cpu.yaml"), **fields)
    model = load_model(model_plan(plan), kernels(plan), SPECS / "models" / "tiny-v41")
    return CompiledTiny(model_plan(plan), layout_content(plan), model)
