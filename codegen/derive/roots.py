"""The roots of the Plan: spec values, model config, hardware table and the cache formats."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

FORMATS = {
    "nvfp4_g16": (4, 16, 1, "e2m1 values, one e4m3 scale for 16 of them"),
    "mxfp4_g32": (4, 32, 1, "e2m1 values, one power-of-two scale byte for 32 of them"),
    "mxfp8_g32": (8, 32, 1, "e4m3 values, one power-of-two scale byte for 32 of them"),
    "bf16": (16, 1, 0, "two bytes a value, no scale"),
    "fp32": (32, 1, 0, "four bytes a value, no scale"),
}
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
    for name, (bits, group, scale_bytes, why) in FORMATS.items():
        b.given(f"formats.{name}.bits", bits, unit="bits", source=_FORMAT_SOURCE, why=why)
        b.given(f"formats.{name}.group", group, unit="values", source=_FORMAT_SOURCE, why="values that share a scale")
        b.given(f"formats.{name}.scale_bytes", scale_bytes, unit="B", source=_FORMAT_SOURCE, why="bytes of one scale")
