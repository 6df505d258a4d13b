"""The plans of the shipped specs, derived once per process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import deepinfer_gen.specs
from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

SPEC_FOLDER = Path(deepinfer_gen.specs.__path__[0])
NAMES = tuple(sorted(path.stem for path in SPEC_FOLDER.glob("*.yaml")))


@cache
def shipped_plan(name: str) -> Plan:
    return derive(resolve(load_spec(SPEC_FOLDER / f"{name}.yaml")))
