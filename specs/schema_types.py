"""Building blocks of the spec schema: how a setting is declared, and the value types that pydantic has no word for.

Every setting states in one place its default, meaning, unit, status and the engine types it means something for. A
setting with a computed default has the default ``None`` and a ``rule`` in words; ``resolve`` computes it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from deepinfer_gen.specs.yaml_tree import PlainWord

Status = Literal["stable", "planned"]
ALL = ("NORMAL", "PROMPT", "COMPLETION")
PREFILLS = ("NORMAL", "PROMPT")
DECODES = ("NORMAL", "COMPLETION")
VOTES = ("NORMAL",)
_DECIMALS = 10**9
"""Fractions are compiled as numerator and denominator; both must fit 32 bits."""


class Section(BaseModel):
    """A mapping of the spec: no unknown key, nothing converted, nothing changed afterwards."""

    # A section alone is never validated, so its validator is built with that of the whole only.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def setting(
    default: Any,
    why: str,
    *,
    unit: str = "",
    types: tuple[str, ...] = ALL,
    status: Status = "stable",
    rule: str = "",
    **constraints: Any,
) -> Any:
    """Declare a setting; ``rule`` says how a default of ``None`` is computed, ``...`` as default means required."""
    extra: dict[str, Any] = {"unit": unit, "engine_types": list(types), "status": status}
    if rule:
        extra["default_rule"] = rule
    return Field(default, description=why, json_schema_extra=extra, **constraints)


def _text(value: Any) -> Any:
    if isinstance(value, PlainWord):
        raise PydanticCustomError(
            "ambiguous", "is the word '{word}', a truth value to some YAML readers", {"word": str(value)}
        )
    return value


def _fraction(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise PydanticCustomError("wrong_type", "must be a decimal number")
    return Fraction(value)


def _switch(value: Any) -> Any:
    """``true`` and ``on`` are one value; so are ``false`` and ``off``."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _auto_integer(low: int, high: int) -> Any:
    def check(value: Any) -> Any:
        if value == "auto":
            return "auto"
        if isinstance(value, bool) or not isinstance(value, int):
            raise PydanticCustomError("wrong_type", "must be an integer or auto")
        if not low <= value <= high:
            raise PydanticCustomError(
                "out_of_range", "must be auto or between {low} and {high}", {"low": low, "high": high}
            )
        return value

    schema = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": low, "maximum": high}]}
    return Annotated[Any, PlainValidator(check), WithJsonSchema(schema)]


def _fraction_between(low: str, high: str, *, open_low: bool = False) -> Any:
    def check(value: Any) -> Fraction:
        number = _fraction(value)
        if number < Fraction(low) or number > Fraction(high) or (open_low and number == Fraction(low)):
            sentence = "must be over {low} and at most {high}" if open_low else "must be between {low} and {high}"
            raise PydanticCustomError("out_of_range", sentence, {"low": low, "high": high})
        if _DECIMALS % number.denominator:
            raise PydanticCustomError("out_of_range", "must have at most 9 decimal places")
        return number

    least = "exclusiveMinimum" if open_low else "minimum"
    schema = {"type": "number", least: float(low), "maximum": float(high)}
    return Annotated[Fraction, PlainValidator(check), WithJsonSchema(schema)]


Text = Annotated[str, BeforeValidator(_text)]
Switch = Annotated[
    Literal["auto", "on", "off"], BeforeValidator(_switch), WithJsonSchema({"enum": ["auto", "on", "off", True, False]})
]
YocoMode = Annotated[Literal["off", "compact", "mask"], BeforeValidator(lambda v: "off" if v is False else v)]
NumBlocks = _auto_integer(2, 2**31 - 1)
Burst = _auto_integer(1, 256)
SlotsRatio = _fraction_between("1", "16")
Survival = _fraction_between("0", "1", open_low=True)
UsageLimit = _fraction_between("0", "1", open_low=True)
Gain = _fraction_between("0", "1")
Margin = _fraction_between("0", "0.9")
