"""Changing any one spec field changes the engine in the way the table predicts, and in no other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.render import render, stamp_lines
from deepinfer_gen.codegen.sources import EngineView
from deepinfer_gen.codegen.stored_kv import unreadable_because
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.mechanisms import refuse_unbuilt
from deepinfer_gen.specs.fields import spec_fields
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

from .specialisation_rows import MORE_ROWS
from .specialisation_table import BASES, CODE_FILES, ROWS, Change, Row

ALL_ROWS = (*ROWS, *MORE_ROWS)
STABLE = [r for r in ALL_ROWS if not r.planned]
PLANNED = [r for r in ALL_ROWS if r.planned]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Plan]:
    """The Plan of a base engine (key ``""``), or of one with the field of one row changed; each derived once."""

    @cache
    def plan(base: str, key: str) -> Plan:
        content = changed_spec(next(r for r in ALL_ROWS if r.key == key)) if key else BASES[base]
        return derived(content, tmp_path_factory.mktemp("spec"))

    return plan


@pytest.fixture(scope="module")
def code(plans: Callable[[str, str], Plan]) -> Callable[[str, str], dict[str, str]]:
    """The generated code without what always changes: the stamp and the digest constant; each rendered once."""

    @cache
    def files(base: str, key: str) -> dict[str, str]:
        plan = plans(base, key)
        rendered = render(plan)
        for line in (*stamp_lines(plan), plan.plan_digest):
            rendered = {name: text.replace(line, "") for name, text in rendered.items()}
        assert all(json.loads(rendered[n])["stamp"] == [""] * 4 for n in CODE_FILES if n.endswith(".json"))
        return rendered

    return files


def derived(content: Mapping[str, Any], folder: Path) -> Plan:
    path = folder / "spec.yaml"
    with path.open("w", encoding="utf-8") as stream:
        YAML().dump(dict(content), stream)
    return derive(resolve(load_spec(path)))


def changed_spec(row: Row) -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy(dict(BASES[row.base]))
    *sections, name = row.key.split(".")
    place = content
    for section in sections:
        place = place.setdefault(section, {})
    assert place.get(name) != row.value
    place[name] = row.value
    return content


def test_every_field_has_exactly_one_row() -> None:
    assert [r.key for r in ALL_ROWS] == list(spec_fields())


def test_rows_agree_with_the_status_in_the_schema() -> None:
    assert {r.key for r in PLANNED} == {f.key for f in spec_fields().values() if f.status == "planned"}


@pytest.mark.parametrize("row", PLANNED, ids=lambda r: r.key)
def test_a_planned_field_is_refused_with_that_word(row: Row, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="planned") as fault:
        derived(changed_spec(row), tmp_path)
    assert any(row.key in d.message and "planned" in d.message for d in fault.value.diagnostics)


@pytest.mark.parametrize("row", STABLE, ids=lambda r: r.key)
def test_plan_keys(row: Row, plans: Callable[[str, str], Plan]) -> None:
    before, after = plans(row.base, ""), plans(row.base, row.key)
    changed = {k for k in {*before, *after} if _leaf(before, k) != _leaf(after, k)}
    predicted = {row.key, *row.changes}
    below = {k for k in changed if k.startswith(row.prefixes)} if row.prefixes else set()
    assert changed - below - predicted == set(), "changed, not predicted"
    assert predicted - changed == set(), "predicted, not changed"
    assert [p for p in row.prefixes if not any(k.startswith(p) for k in changed)] == []
    values = {k: v for k, v in row.changes.items() if not isinstance(v, Change)}
    assert {k: after[k] for k in values} == values
    assert [k for k, v in row.changes.items() if v is Change.ABSENT and k in after] == []


@pytest.mark.parametrize("row", STABLE, ids=lambda r: r.key)
def test_generated_files(row: Row, code: Callable[[str, str], dict[str, str]]) -> None:
    before, after = code(row.base, ""), code(row.base, row.key)
    assert {name for name in CODE_FILES if before[name] != after[name]} == row.files


def test_run_accepts_the_tiny_base(plans: Callable[[str, str], Plan]) -> None:
    refuse_unbuilt("base", plans("tiny", "").as_dict()["values"])


@pytest.mark.parametrize("row", [r for r in STABLE if r.run_refuses], ids=lambda r: r.key)
def test_run_refuses_what_is_not_built(row: Row, plans: Callable[[str, str], Plan]) -> None:
    with pytest.raises(InputError) as fault:
        refuse_unbuilt("base", plans(row.base, row.key).as_dict()["values"])
    assert any(f"{row.run_refuses} is " in d.message for d in fault.value.diagnostics)


@pytest.mark.parametrize("row", STABLE, ids=lambda r: r.key)
def test_whether_stored_kv_can_be_read(
    row: Row, plans: Callable[[str, str], Plan], code: Callable[[str, str], dict[str, str]]
) -> None:
    def view(key: str) -> EngineView:
        layout, graphs, kernels = (
            json.loads(code(row.base, key)[f"{n}.json"]) for n in ("layout", "graphs", "kernels")
        )
        return EngineView(plans(row.base, key), layout, graphs, kernels)

    assert bool(unreadable_because(view(""), view(row.key))) == row.blocks_stored_reads


@pytest.mark.parametrize("row", STABLE, ids=lambda r: r.key)
def test_no_field_does_nothing(row: Row) -> None:
    """A field reaches a generated file, or ``run`` says that the mechanism behind it is not built."""
    assert row.behaviour
    assert row.files or row.run_refuses or row.blocks_stored_reads or row.key == "engine.name"


def _leaf(plan: Plan, key: str) -> object:
    return (plan[key], plan.values[key].unit) if key in plan else Change.ABSENT
