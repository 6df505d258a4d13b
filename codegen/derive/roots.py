"""The roots of the Plan: spec values, model config, hardware table and the cache formats."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.cache_formats import CACHE_FORMATS
from deepinfer_gen.specs.resolved import Resolved

_FORMAT_SOURCE = "cache format table"


def derive(b: PlanBuilder, r: Resolved) -> None:
    """Spec values under their keys, ``model.config.*``, ``hardware.*`` and ``formats.*``."""
    for key, setting in r.settings.items():
        if (key, setting.value) != ("kv.num_blocks", "auto"):  # the memory plan decides it
            b.setting(key, setting)
    source = r.settings["model"].source
    b.given("model.preset", r.model.preset, source=source, why="the packaged model config, empty for one of the user's")
    for name, setting in r.model.settings().items():
        b.setting(f"model.config.{name}", setting)
    for name, setting in r.hardware.settings.items():
        b.setting(f"hardware.{name}", setting)
    for name, form in CACHE_FORMATS.items():
        prefix, source = f"formats.{name}", _FORMAT_SOURCE
        b.given(f"{prefix}.bits", form.bits, unit="bits", source=source, why=form.why)
        b.given(f"{prefix}.group", form.group, unit="values", source=source, why="values that share a scale")
        b.given(f"{prefix}.scale_bytes", form.scale_bytes, unit="B", source=source, why="bytes of one scale")
