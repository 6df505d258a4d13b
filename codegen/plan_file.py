"""Reading ``plan.json`` back into a Plan."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

from deepinfer_gen.codegen.plan import PLAN_SCHEMA, Plan, Traced
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.formula import Value, normalise

_FRACTION = re.compile(r"-?\d+/\d+")


def parse_plan(text: str, file: str, regenerate: str) -> Plan:
    """The Plan that ``text``, the content of a ``plan.json``, holds.

    ``file`` and ``regenerate``, the command that writes it anew, are for the error. The file does not keep the names
    that a formula gives its operands, so each operand is named by its key. Raises
    ``InputError`` (DI260) when the text is not a plan of this schema or does not match its own digest.
    """
    try:
        content = json.loads(text)
        plan = _plan(content)
        if plan.plan_digest != content["plan_digest"]:
            raise ValueError(
                f"values have digest {plan.plan_digest[:12]}, not {content['plan_digest'][:12]} as it says"
            )
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        message = f"is not a plan of schema {PLAN_SCHEMA}: {type(fault).__name__}: {fault}"
        remedy = f"write the folder anew: {regenerate}"
        raise InputError(Diagnostic("DI260", message, file, help=remedy)) from None
    return plan


def _plan(content: dict[str, Any]) -> Plan:
    if content["schema"] != PLAN_SCHEMA:
        raise ValueError(f"schema is {content['schema']!r}")
    values = {
        key: Traced(
            key=key,
            value=_value(v["value"]),
            unit=v["unit"],
            formula=v["formula"],
            operands=tuple((i, i) for i in v["inputs"]),
            source=v["source"],
            why=v["why"],
        )
        for key, v in content["values"].items()
    }
    for traced in values.values():
        for name in traced.inputs:
            if name not in values:
                raise ValueError(f"{traced.key} names the input {name}, which is missing")
    return Plan(content["name"], content["spec_file"], content["spec_digest"], dict(sorted(values.items())))


def _value(value: Any) -> Value:
    """Undo ``canonical.plain``: ``6/5`` is a fraction, a list a tuple."""
    if isinstance(value, list):
        return tuple(_value(v) for v in value)  # type: ignore[misc]
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        return normalise(Fraction(value))
    if not isinstance(value, str | int | None):
        raise TypeError(f"a value is {value!r}")
    return value
