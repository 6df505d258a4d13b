"""The derived Plan of every shipped spec equals numbers computed by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan, plain
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

HERE = Path(__file__).parent
SPECS = HERE.parents[1] / "specs"
NAMES = sorted(p.stem for p in HERE.glob("*.yaml"))
ROLES = ("ratio", "kv_source", "index_source", "candidate_role", "engram", "rope", "stored")


@cache
def golden(name: str) -> dict[str, Any]:
    """The golden file, with the tables that it names in place of their names."""
    content: dict[str, Any] = read(HERE / f"{name}.yaml")
    for table in ("layers", "slot"):
        if isinstance(content.get(table), str):
            content[table] = read(HERE / "tables" / content[table])
    return content


def read(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


@cache
def plan(name: str) -> Plan:
    spec = golden(name).get("spec")
    return derive(resolve(load_spec(HERE / spec if spec else SPECS / f"{name}.yaml")))


def test_every_shipped_spec_has_a_golden() -> None:
    assert {p.stem for p in SPECS.glob("*.yaml")} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_plan_values(name: str) -> None:
    expected = golden(name)["plan"]
    derived = {key: plain(plan(name)[key]) if key in plan(name) else "absent" for key in expected}
    assert derived == expected


@pytest.mark.parametrize("name", NAMES)
def test_roles_of_all_layers(name: str) -> None:
    expected = golden(name)["layers"]
    layers = {int(key.split(".")[1]) for key in plan(name) if key.startswith("layers.")}
    assert layers == set(expected)
    assert {n: [plan(name)[f"layers.{n}.{role}"] for role in ROLES] for n in sorted(layers)} == expected


@pytest.mark.parametrize("name", NAMES)
def test_offsets_in_a_slot_and_a_block(name: str) -> None:
    for area, key in (("slot", "state.regions"), ("block", "kv.regions")):
        assert regions(plan(name), key) == golden(name)[area]
