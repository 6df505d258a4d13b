"""What is wrong with a layout, or between it and model_plan.py, is said before anything is allocated."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.views.layout import graphs_content, layout_content
from deepinfer_gen.codegen.views.model import kernels, kernels_content, model_plan
from deepinfer_gen.runtime.consistency import contradictions
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Plan]:
    """The tiny model with quantised rows in a row layout."""
    spec = tmp_path_factory.mktemp("spec") / "spec.yaml"

    @cache
    def plan_of(row_layout: str) -> Plan:
        spec.write_text(
            "engine: {name: rows}\nmodel: tiny-v41\nhardware: cpu\nlimits: {max_num_seqs: 4, max_model_len: 400}\n"
            f"kv: {{block_size: 32, row_layout: {row_layout}}}\n"
        )
        return derive(resolve(load_spec(spec)))

    return plan_of


def faults(plan: Plan, layout: Any, model: ModelPlan | None = None) -> list[str]:
    """The contradictions of a folder without those against the extension, which no test here builds."""
    found = contradictions(
        constants={},
        plan_digest="",
        layout=layout,
        graphs=graphs_content(plan),
        kernel_table=kernels_content(plan)["kernels"],
        kernels=kernels(plan),
        model=model or model_plan(plan),
    )
    return [f"{file} {text}" for file, text in found if "where the compiled" not in text]


@pytest.mark.parametrize("row_layout", ["interleaved", "split"])
def test_a_generated_layout_has_no_fault(row_layout: str, plan: Callable[[str], Plan]) -> None:
    assert faults(plan(row_layout), layout_content(plan(row_layout))) == []


def test_a_region_may_move_and_leave_a_hole(plan: Callable[[str], Plan]) -> None:
    """The rule is that no byte has two owners, not that all have one: what the last region leaves is free."""
    layout = copy.deepcopy(layout_content(plan("split")))
    region = layout["state"]["regions"][-3]
    assert region["name"] == "ca_state.4"
    region["offset"] += 128
    layout["state"]["slot_bytes"] += 128
    assert [f for f in faults(plan("split"), layout) if f.startswith("layout.json")] == []


def _window(change: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda layout: change(layout["state"]["regions"][1])


def _main(change: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda layout: change(layout["block"]["regions"][0]["main"])


def _scales(**values: int) -> Callable[[Any], None]:
    return lambda entry: entry["scales"].update(values)


# tiny: windows of 134 rows of 64 + 2 bytes (8,844, padded to 8,848), main rows of 16 x (32 + 4), index of 16 x (16 + 1)
CASES: dict[str, tuple[Callable[[Any], None], str]] = {
    "scales over the data": (
        _window(_scales(offset=8_848 + 1_000)),
        r"gives byte 9848 of a slot to swa.1 and to swa.1",
    ),
    "scales over the next ring": (
        _window(_scales(offset=17_696)),
        r"gives byte 17696 of a slot to swa.[12] and to swa.[12]",
    ),
    "scales over the index rows": (
        _main(_scales(offset=16 * 36)),
        r"gives byte 576 of a block to kv.2 \w+ and to kv.2 \w+",
    ),
    "scales behind the end": (
        lambda layout: layout["block"]["regions"][-1]["index"]["scales"].update(offset=layout["block"]["bytes"] - 31),
        r"lets kv.6 index use bytes (\d+) to (\d+) of a block of \d+",
    ),
    "a region before the beginning": (
        _main(lambda entry: entry.update(offset=-36)),
        r"lets kv.2 main use bytes -36 to -4 of a block of",
    ),
    "parts that are no record": (
        _window(_scales(data_bytes=65)),
        r"gives swa.1 65 bytes of data and 2 of scales in rows of 66",
    ),
    "another stride": (
        _window(_scales(stride=4)),
        r"says row_layout split, and data and scales of swa.1 repeat after \(64, 4\)",
    ),
    "another name": (
        lambda layout: layout["block"].update(row_layout="interleaved"),
        r"says row_layout interleaved, and data and scales of kv.2 main repeat after \(32, 4\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_with_two_owners_and_misplaced_scales_are_found(name: str, plan: Callable[[str], Plan]) -> None:
    change, message = CASES[name]
    layout = copy.deepcopy(layout_content(plan("split")))
    change(layout)
    found = [f for f in faults(plan("split"), layout) if f.startswith("layout.json")]
    assert any(re.search(message, f) for f in found), found


def test_model_plan_must_name_the_same_scales(plan: Callable[[str], Plan]) -> None:
    split, model = plan("split"), model_plan(plan("split"))
    other = model_plan(plan("interleaved"))
    layers = (model.layers[0], replace(model.layers[1], swa=other.layers[1].swa), *model.layers[2:])
    (fault,) = faults(split, layout_content(split), replace(model, layers=layers))
    assert fault.startswith("model_plan.py layer 1 swa is ")
    without = replace(model.layers[2].main, scales=None)  # type: ignore[type-var]
    layers = (*model.layers[:2], replace(model.layers[2], main=without), *model.layers[3:])
    (fault,) = faults(split, layout_content(split), replace(model, layers=layers))
    assert fault.startswith("model_plan.py layer 2 main is ")
