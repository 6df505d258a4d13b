"""The tests' own engine: the preset whose layers the numeric reference has, in a spec that no shipped one changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.sources import plan_spec

TINY = "tiny-test"
TINY_SPEC = Path(__file__).parents[1] / "golden" / "specs" / f"{TINY}.yaml"


@cache
def tiny_plan() -> Plan:
    """The Plan of that spec, derived once per process."""
    return plan_spec(str(TINY_SPEC))
