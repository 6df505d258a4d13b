"""The checkpoint's own ``config.json`` against the model that the engine was compiled for.

Tensors of equal shapes do not tell two models apart: rotary bases, the experts chosen or the layer roles may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.checkpoint_files import read_object
from deepinfer_gen.runtime.consistency import short

_PREFIX = "model.config."


def check_config(folder: Path, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare every ``model.config.*`` value of the Plan; raises ``InputError`` (DI360), one fault a key.

    The Plan's source of a value says where it stands in a config. A folder without the file is taken at its word.
    """
    path = folder / "config.json"
    if not path.is_file():
        return
    config = read_object(path, "the checkpoint's config", "DI360", exact=True)
    faults = list(_faults(path, config, values))
    if faults:
        raise InputError(faults)


def _faults(path: Path, config: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnostic]:
    for key, entry in values.items():
        if not key.startswith(_PREFIX):
            continue
        place = str(entry["source"]).rpartition(": ")[2]
        found = _at(config, place)
        if not _same(found, entry["value"]):
            message = f"{place} is {_shown(found)}, and the engine was compiled for {_shown(entry['value'])}"
            remedy = "use the engine's checkpoint, or compile an engine for this config.json"
            yield Diagnostic("DI360", message, file=str(path), help=remedy)


def _at(config: Any, place: str) -> Any:
    for part in place.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _same(found: Any, planned: Any) -> bool:
    """Fractions stand in a Plan as text, ``3/2``; truth values are not numbers."""
    if isinstance(found, bool) or isinstance(planned, bool):
        return found is planned
    return bool(found == planned or (isinstance(found, Fraction) and str(found) == str(planned)))


def _shown(value: Any) -> str:
    return "missing" if value is None else str(value) if isinstance(value, Fraction) else short(value)
