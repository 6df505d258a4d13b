"""A checkpoint's own ``config.json`` against the config that the engine was compiled for."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.mechanisms import PlanValues

_FILE = "config.json"
_PREFIX = "model.config."


def check_config(folder: Path, values: PlanValues, engine: str) -> None:
    """Raise ``InputError`` (DI306) for every model config key whose value in the checkpoint differs from the Plan's.

    Tensors of equal shape would load all the same and give other text. A folder without ``config.json`` has nothing to
    compare. ``values`` is the content of ``plan.json`` under that key.
    """
    path = folder / _FILE
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_float=Fraction)
    except ValueError as fault:
        raise InputError(
            Diagnostic(
                "DI307", f"this is no JSON: {fault}", str(path), help="take the file of the checkpoint's release"
            )
        ) from None
    faults = [
        Diagnostic(
            "DI306",
            f"{'.'.join(place)} is {_shown(found)}, and engine '{engine}' is compiled for {_shown(planned)}",
            str(path),
            help="give the checkpoint that belongs to the engine's model, or compile an engine for this config",
        )
        for place, planned, found in _compared(values, config)
        if found != planned
    ]
    if faults:
        raise InputError(faults)


def _compared(values: PlanValues, config: Any) -> list[tuple[list[str], Any, Any]]:
    """Key path, planned value and found value of every key that a root of the Plan was read from."""
    compared = []
    for key, entry in values.items():
        _, is_config, path = str(entry["source"]).partition(": ")
        if key.startswith(_PREFIX) and is_config:
            place = path.split(".")
            compared.append((place, _exact(entry["value"]), _exact(_at(config, place))))
    return compared


def _at(config: Any, place: list[str]) -> Any:
    for name in place:
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _exact(value: Any) -> Any:
    """Numbers as fractions, whatever way they are written; lists as tuples."""
    if isinstance(value, list):
        return tuple(_exact(v) for v in value)
    if isinstance(value, bool) or value is None:
        return value
    try:
        return Fraction(value)
    except (ValueError, TypeError):
        return value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(v) for v in value)}]"
    if isinstance(value, Fraction):
        return str(value) if value.denominator == 1 else repr(float(value))
    return "missing" if value is None else json.dumps(value)
