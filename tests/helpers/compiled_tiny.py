"""The tiny model as the compiler plans it, with some spec fields changed; no C++ is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from spec_plan import spec_plan
from tiny_spec import TINY_SPEC

from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.specs.presets import preset_folder


@dataclass(frozen=True)
class CompiledTiny:
    """What the model needs of a generated folder, and the model."""

    plan: ModelPlan
    layout: dict[str, Any]
    model: Model


def compiled_tiny(folder: Path, **fields: Any) -> CompiledTiny:
    """The tests' own spec with ``section__field=value`` changed; it is written into ``folder``."""
    plan = spec_plan(folder, YAML(typ="safe").load(TINY_SPEC), **fields)
    model = load_model(model_plan(plan), kernels(plan), preset_folder("tiny-v41"))
    return CompiledTiny(model_plan(plan), layout_content(plan), model)
