"""What ships inside the package: specs, model presets with their checkpoints, hardware tables."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parent


@cache
def shipped_specs() -> dict[str, Path]:
    """The shipped specs by bare name."""
    return {p.stem: p for p in sorted(_ROOT.glob("*.yaml"))}


@cache
def presets() -> dict[str, Path]:
    """The model presets by name: folders that hold a ``config.json`` and perhaps a checkpoint."""
    return {p.parent.name: p.parent for p in sorted(_ROOT.glob("models/*/config.json"))}


@cache
def hardware_tables() -> dict[str, Path]:
    """The shipped hardware tables by name."""
    return {p.stem: p for p in sorted(_ROOT.glob("hardware/*.yaml"))}


def preset_folder(name: str) -> Path:
    """The folder of the preset ``name``; ``KeyError`` if there is none."""
    return presets()[name]
