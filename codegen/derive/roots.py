"""The roots of the Plan: spec values, model config, hardware table and the cache formats."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

from deepinfer_gen.codegen.plan import PlanBuilder, digest_json, plain
from deepinfer_gen.formula import Value, normalise
from deepinfer_gen.specs.resolved import Resolved

FORMATS = {
    "nvfp4_g16": (4, 16, 1, "e2m1 values, one e4m3 scale for 16 of them"),
    "mxfp4_g32": (4, 32, 1, "e2m1 values, one power-of-two scale byte for 32 of them"),
    "mxfp8_g32": (8, 32, 1, "e4m3 values, one power-of-two scale byte for 32 of them"),
    "bf16": (16, 1, 0, "two bytes a value, no scale"),
    "fp32": (32, 1, 0, "four bytes a value, no scale"),
}
_FORMAT_SOURCE = "cache format table"
_MODEL_BOOKKEEPING = frozenset({"preset", "file", "sources"})


def derive(b: PlanBuilder, r: Resolved) -> None:
    """Spec values under their keys, ``model.config.*``, ``hardware.*`` and ``formats.*``."""
    for key, setting in r.settings.items():
        if (key, setting.value) != ("kv.num_blocks", "auto"):  # the memory plan decides it
            b.setting(key, setting)
    b.given("model.preset", r.model.preset, source=r.model.file, why="which packaged model config this is, if any")
    for key, value in model_values(r).items():
        name = key.partition(".")[0]
        source = r.model.sources.get(key, r.model.sources.get(name, r.model.file))
        b.given(f"model.config.{key}", value, source=source, why="as the checkpoint's config states it")
    for name, setting in r.hardware.settings.items():
        b.setting(f"hardware.{name}", setting)
    for name, (bits, group, scale_bytes, why) in FORMATS.items():
        b.given(f"formats.{name}.bits", bits, unit="bits", source=_FORMAT_SOURCE, why=why)
        b.given(f"formats.{name}.group", group, unit="values", source=_FORMAT_SOURCE, why="values that share a scale")
        b.given(f"formats.{name}.scale_bytes", scale_bytes, unit="B", source=_FORMAT_SOURCE, why="bytes of one scale")


def model_values(r: Resolved) -> dict[str, Value]:
    """The model config by released names, nested ones dotted, floats as exact fractions of their decimal text."""
    return {
        key: value
        for field in fields(r.model)
        if field.name not in _MODEL_BOOKKEEPING
        for key, value in _flat(field.name, getattr(r.model, field.name))
    }


def spec_digest(r: Resolved) -> str:
    """sha256 over the resolved values: settings, model config and hardware; moved lines and comments do not count."""
    return digest_json(
        {
            "name": r.name,
            "settings": {key: plain(normalise(setting.value)) for key, setting in r.settings.items()},
            "model": {key: plain(value) for key, value in model_values(r).items()},
            "hardware": {name: plain(setting.value) for name, setting in r.hardware.settings.items()},
        }
    )


def _flat(key: str, value: Any) -> list[tuple[str, Value]]:
    if is_dataclass(value):
        return [pair for f in fields(value) for pair in _flat(f"{key}.{f.name}", getattr(value, f.name))]
    return [(key, normalise(Fraction(str(value)) if isinstance(value, float) else value))]
