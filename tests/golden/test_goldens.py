"""The derived Plan of every shipped spec equals numbers computed by hand."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deepinfer_gen.canonical import plain
from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.diagnostics import InputError
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
    own = HERE / "specs" / f"{name}.yaml"
    return plan_of(own if own.exists() else SPECS / f"{name}.yaml")


def plan_of(spec: Path) -> Plan:
    return derive(resolve(load_spec(spec)))


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
    layers = {int(key.split(".")[1]) for key in plan(name) if key.startswith("layers.") and key.endswith(".ratio")}
    assert layers == set(expected)
    assert {n: [plan(name)[f"layers.{n}.{role}"] for role in ROLES] for n in sorted(layers)} == expected


@pytest.mark.parametrize("name", NAMES)
def test_offsets_in_a_slot(name: str) -> None:
    kinds = ("state.swa.", "state.ca_state.", "state.ica_state.")
    offsets = {k for k in plan(name) if k.startswith(kinds) and k.endswith(".offset")}
    assert {k.removeprefix("state.").removesuffix(".offset"): plan(name)[k] for k in offsets} == golden(name)["slot"]


@pytest.mark.parametrize("name", NAMES)
def test_offsets_in_a_block(name: str) -> None:
    derived: dict[str, list[Any]] = {}
    for key in plan(name):
        if key.startswith("kv.source.") and key.endswith(".main_offset"):
            source = key.removesuffix(".main_offset")
            derived[source.replace(".source", "")] = [
                plan(name)[f"{source}.{k}"] for k in ("offset", "bytes", "index_offset")
            ]
            assert plan(name)[key] == plan(name)[f"{source}.offset"]
    assert derived == golden(name)["block"]


def test_a_pool_that_memory_binds_leaves_no_room_for_one_more_block() -> None:
    """So many sequences that the longest ones do not all fit: the pool takes what the card has left, to the block."""
    bound = plan("memory-bound")
    parts = ("weights_dense", "weights_experts", "weights_engram", "state", "workspace", "graphs", "margin")
    left = bound.integer("memory.capacity_bytes") - sum(bound.integer(f"memory.{p}_bytes") for p in parts)
    assert bound["kv.num_blocks"] == left // 113_920
    assert bound["memory.total_bytes"] == bound.integer("memory.capacity_bytes") - left % 113_920


def test_replicated_engram_tables_do_not_fit_a_card() -> None:
    """Both tables are 202,758,032,400 bytes, more than the 180 GB of a B200."""
    with pytest.raises(InputError) as fault:
        plan_of(HERE / "specs" / "engram-replicated.yaml")
    assert any("202758032400" in re.sub(r"[,_' ]", "", d.message) for d in fault.value.diagnostics)
