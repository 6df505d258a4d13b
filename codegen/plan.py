"""The Plan: a frozen set of traced values, the only input of everything downstream.

Each value knows its unit, its formula over other values, its source and one line of why. Keys are dotted and fixed;
``plan_digest`` covers values and units only, so that a moved line or a reworded reason rebuilds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer_gen.canonical import digest_plan, plain
from deepinfer_gen.formula import Value, evaluate, normalise, operand_names
from deepinfer_gen.specs.resolved import Setting

PLAN_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Traced:
    """One constant. ``operands`` pairs the names used in ``formula`` with Plan keys; ``source`` is set on leaves."""

    key: str
    value: Value
    unit: str
    formula: str
    operands: tuple[tuple[str, str], ...]
    source: str
    why: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """The Plan keys this value was computed from."""
        return tuple(dict.fromkeys(key for _, key in self.operands))

    def as_dict(self) -> dict[str, Any]:
        """The entry of this constant in ``plan.json``."""
        return {
            "value": plain(self.value),
            "unit": self.unit,
            "formula": self.formula,
            "inputs": list(self.inputs),
            "source": self.source,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The frozen result of ``derive``; ``values`` is sorted by key.

    ``plan_digest`` is the sha256 of the canonical JSON of ``{key: [value, unit]}``.
    """

    name: str
    spec_file: str
    spec_digest: str
    values: Mapping[str, Traced]
    plan_digest: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        digest = digest_plan({k: (plain(t.value), t.unit) for k, t in self.values.items()})
        object.__setattr__(self, "plan_digest", digest)

    def __getitem__(self, key: str) -> Value:
        return self.values[key].value

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def integer(self, key: str) -> int:
        """The value under ``key``, which must be an integer."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{key} is {value!r}, not an integer")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """The value under ``key``, which must be a list of integers."""
        value = self[key]
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise TypeError(f"{key} is {value!r}, not a list of integers")
        return value  # type: ignore[return-value]

    def as_dict(self) -> dict[str, Any]:
        """The content of ``plan.json``."""
        return {
            "schema": PLAN_SCHEMA,
            "name": self.name,
            "spec_file": self.spec_file,
            "spec_digest": self.spec_digest,
            "plan_digest": self.plan_digest,
            "values": {k: t.as_dict() for k, t in self.values.items()},
        }


class PlanBuilder:
    """Collects traced values in dependency order; a key is written once and every operand must exist."""

    def __init__(self) -> None:
        self._values: dict[str, Traced] = {}

    def __getitem__(self, key: str) -> Value:
        return self._values[key].value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def integer(self, key: str) -> int:
        """The value under ``key``, which must be an integer."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{key} is {value!r}, not an integer")
        return value

    def unit(self, key: str) -> str:
        """The unit of the value under ``key``."""
        return self._values[key].unit

    def given(self, key: str, value: Any, *, source: str, why: str, unit: str = "") -> None:
        """A root: a spec value, a model config key, a hardware table entry or a default."""
        self._put(Traced(key, normalise(value), unit, "", (), source, why))

    def formula(self, key: str, expression: str, *, why: str, unit: str = "", **operands: str) -> None:
        """A value computed by evaluating ``expression``; ``operands`` maps each of its names to a Plan key."""
        if set(operands) != set(operand_names(expression)):
            raise ValueError(f"{key}: operands {sorted(operands)} differ from the names in '{expression}'")
        value = evaluate(expression, {name: self._values[k].value for name, k in operands.items()})
        self._put(Traced(key, value, unit, expression, tuple(operands.items()), "", why))

    def table(self, key: str, value: Any, *, formula: str, inputs: Mapping[str, str], why: str, unit: str = "") -> None:
        """A value that no arithmetic expression gives (a list, a role): ``formula`` states its rule in words."""
        self._put(Traced(key, normalise(value), unit, formula, tuple(inputs.items()), "", why))

    def setting(self, key: str, setting: Setting) -> None:
        """A resolved spec value under its spec key."""
        value = normalise(setting.value)
        self._put(Traced(key, value, setting.unit, setting.formula, setting.operands, setting.source, setting.why))

    def build(self, *, name: str, spec_file: str, spec_digest: str) -> Plan:
        """Freeze, after checking that every operand is a key of the Plan."""
        for traced in self._values.values():
            for name_, key in traced.operands:
                if key not in self._values:
                    raise ValueError(f"{traced.key}: operand {name_} refers to '{key}', which the Plan lacks")
        return Plan(name, spec_file, spec_digest, dict(sorted(self._values.items())))

    def _put(self, traced: Traced) -> None:
        if traced.key in self._values:
            raise ValueError(f"Plan key '{traced.key}' is derived twice")
        self._values[traced.key] = traced
