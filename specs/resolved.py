"""The resolved spec: every setting with its value, where it came from and why, and the tables it refers to.

``resolve`` fills it; ``derive`` reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer_gen.formula import Value

if TYPE_CHECKING:
    from deepinfer_gen.specs.hardware_table import HardwareTable
    from deepinfer_gen.specs.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """One spec value after defaults.

    ``source`` is ``file:line:col`` (base name) when the spec wrote it, else ``default``. A default that depends on
    other values carries its ``formula`` and ``operands`` (name in the formula, Plan key).
    """

    value: Value
    source: str
    why: str
    unit: str = ""
    formula: str = ""
    operands: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """Input of ``derive``: ``settings`` by dotted spec key (only those that mean something for the engine type)."""

    name: str
    spec_file: str
    settings: Mapping[str, Setting]
    model: ModelConfig
    hardware: HardwareTable

    def __getitem__(self, key: str) -> Value:
        return self.settings[key].value
