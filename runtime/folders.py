"""Where an engine and its checkpoint are found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.mechanisms import PlanValues
from deepinfer_gen.specs.presets import presets


def engine_folder(name: str | Path) -> Path:
    """A generated folder by path or by bare name below ``./generated``; raises ``InputError`` (DI302) for none."""
    candidates = [Path(name)]
    if len(Path(name).parts) == 1:
        candidates.append(Path("generated") / name)
    for folder in candidates:
        if (folder / "plan.json").is_file():
            return folder
    compiled = Path("generated") / Path(name).stem
    if (compiled / "plan.json").is_file():
        remedy = f"a spec is no engine; the folder compiled from it may be {compiled}"
    else:
        remedy = "make one with: deepinfer-gen SPEC (or LLM.from_spec), and name its folder"
    raise InputError(
        Diagnostic(
            "DI302", f"there is no generated engine at {' or '.join(f'{str(c)!r}' for c in candidates)}", help=remedy
        )
    )


@dataclass(frozen=True, slots=True)
class PlanHead:
    """What is read of ``plan.json`` before the engine is verified."""

    name: str
    spec_file: str
    values: PlanValues


def read_plan(folder: Path) -> PlanHead:
    """Read ``plan.json``; raises ``InputError`` (DI303)."""
    path = folder / "plan.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        plan["values"]["engine.type"]["value"]
        return PlanHead(plan["name"], plan["spec_file"], plan["values"])
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise InputError(
            Diagnostic(
                "DI303",
                f"this is no Plan: {type(fault).__name__}: {fault}",
                file=str(path),
                help="generate the engine again: deepinfer-gen SPEC --force",
            )
        ) from fault


def checkpoint_folder(model: str | Path | None, preset: str) -> Path:
    """The checkpoint to load: ``model``, or what ships with the preset; raises ``InputError`` (DI304, DI305)."""
    if model is not None:
        folder = Path(model)
        if not folder.is_dir():
            raise InputError(
                Diagnostic(
                    "DI304", f"there is no checkpoint folder '{model}'", help="pass a folder with safetensors files"
                )
            )
        return folder
    shipped = presets().get(preset)
    if shipped is not None and any(shipped.glob("*.safetensors")):
        return shipped
    raise InputError(
        Diagnostic(
            "DI305",
            f"no checkpoint ships with the preset '{preset}'"
            if preset
            else "the engine's model is no preset, so no checkpoint ships with it",
            help="name one: --model FOLDER (or LLM(model=...))",
        )
    )
