"""Hardware tables: one card's public figures, from a shipped table or one below the spec's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.formula import normalise
from deepinfer_gen.specs.folder_path import path_below, shown_below
from deepinfer_gen.specs.presets import hardware_tables
from deepinfer_gen.specs.resolved import Setting
from deepinfer_gen.specs.schema_types import Margin, Section, Text, setting
from deepinfer_gen.specs.source_text import SourceText, read_source
from deepinfer_gen.specs.validate import did_you_mean, validate
from deepinfer_gen.specs.yaml_tree import KeyPlace, read_tree

MAX_TABLE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HardwareTable:
    """One card. Sizes are bytes; ``settings`` holds every entry by name with unit, source and meaning."""

    name: str
    card: str
    backend: str
    arch: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    scale_up_ranks: int
    shared_memory_bytes: int
    compute_units: int
    memory_margin: Fraction
    graph_bytes: int
    file: str
    settings: Mapping[str, Setting]


class HardwareModel(Section):
    """The keys of a hardware table, all required."""

    name: Text = setting(..., "short name of the target", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    card: Text = setting(..., "the card whose figures these are", min_length=1, max_length=100)
    backend: Literal["cpu", "cuda", "ascend"] = setting(..., "which kernels and device runtime are used")
    arch: Text = setting(..., "compiler architecture, empty on cpu", pattern=r"^[a-z0-9_-]{0,32}$")
    memory_bytes: int = setting(..., "device memory of one rank", unit="B", ge=1, le=2**50)
    memory_bandwidth_bytes_per_s: int = setting(..., "peak memory bandwidth", unit="B/s", ge=1, le=2**60)
    scale_up_ranks: int = setting(
        ..., "ranks of one scale-up domain (NVLink, UB, one host)", unit="ranks", ge=1, le=65_536
    )
    shared_memory_bytes: int = setting(..., "scratchpad of one kernel block", unit="B", ge=0, le=2**30)
    compute_units: int = setting(..., "SMs, AI cores or CPU cores", ge=1, le=65_536)
    memory_margin: Margin = setting(..., "fraction of the memory kept free for the runtime and the allocator")
    graph_bytes: int = setting(..., "estimated memory of one captured graph", unit="B", ge=0, le=2**36)


def load_hardware(written: str, folder: Path, at: KeyPlace, spec_shown: str) -> HardwareTable:
    """The table that ``hardware: written`` names: a shipped one, or a ``.yaml`` path below ``folder``.

    Raises ``InputError``: DI020 (no such table), DI018 (path), or the faults of the table itself.
    """
    if written in hardware_tables():
        path = hardware_tables()[written]
        return read_hardware(read_source(path, path.name, MAX_TABLE_BYTES, "the hardware table"))
    if not written.endswith((".yaml", ".yml")):
        remedy = did_you_mean(written, hardware_tables(), "there are these tables, or name a .yaml file")
        raise InputError(at.error("DI020", f"hardware is '{written}', which is no hardware table", remedy))
    path = path_below(folder, written, "hardware", at)
    if not os.path.isfile(path):  # also False for a name that the file system cannot hold
        message = f"hardware is '{written}', and there is no such file"
        raise InputError(at.error("DI020", message, "the path is relative to the spec's folder"))
    return read_hardware(read_source(path, shown_below(spec_shown, written), MAX_TABLE_BYTES, "the hardware table"))


def read_hardware(source: SourceText) -> HardwareTable:
    """Validate one table; raises ``InputError`` with all its faults."""
    tree = read_tree(source)
    model, diagnostics, _ = validate(HardwareModel, tree)
    if model is None:
        raise InputError(diagnostics)
    settings = {
        name: Setting(
            normalise(getattr(model, name)),
            f"{source.base}: {name}",
            str(info.description),
            info.json_schema_extra["unit"],  # type: ignore[arg-type, index]
        )
        for name, info in HardwareModel.model_fields.items()
    }
    return HardwareTable(**{n: getattr(model, n) for n in settings}, file=source.base, settings=settings)
