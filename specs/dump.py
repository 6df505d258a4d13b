"""Specs as JSON content, with and without provenance, and the digest of a resolved one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_gen.canonical import digest_json, plain
from deepinfer_gen.specs.fields import spec_fields
from deepinfer_gen.specs.load import LoadedSpec
from deepinfer_gen.specs.resolved import Resolved, Setting
from deepinfer_gen.specs.schema import spec_value


def spec_digest(resolved: Resolved) -> str:
    """sha256 of what the spec means: values of settings, model config and hardware table, no lines and no reasons."""
    return digest_json(
        {
            "settings": _values(resolved.settings),
            "model": _values(resolved.model.settings()) | {"preset": resolved.model.preset},
            "hardware": _values(resolved.hardware.settings),
        }
    )


def spec_as_dict(loaded: LoadedSpec) -> dict[str, Any]:
    """``--dump spec``: every value that the file writes, by dotted key, with its position."""
    return {
        key: {"value": plain(spec_value(loaded.spec, key)), "source": loaded.source_of(key)}
        for key in spec_fields()
        if key in loaded.places
    }


def resolved_as_dict(resolved: Resolved) -> dict[str, Any]:
    """``--dump resolved``: every setting, model config key and hardware entry with source, unit and meaning."""
    return {
        "name": resolved.name,
        "spec_file": resolved.spec_file,
        "spec_digest": spec_digest(resolved),
        "settings": _traced(resolved.settings),
        "model": {"file": resolved.model.file, "preset": resolved.model.preset}
        | {"config": _traced(resolved.model.settings())},
        "hardware": {"file": resolved.hardware.file, "entries": _traced(resolved.hardware.settings)},
    }


def _values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: plain(setting.value) for key, setting in settings.items()}


def _traced(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: _one(setting) for key, setting in settings.items()}


def _one(setting: Setting) -> dict[str, Any]:
    return {
        "value": plain(setting.value),
        "unit": setting.unit,
        "formula": setting.formula,
        "inputs": [key for _, key in setting.operands],
        "source": setting.source,
        "why": setting.why,
    }
