"""Engines whose Plan needs what is not built are refused before anything is loaded, with every reason at once."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.mechanisms import UNBUILT, refuse_unbuilt, spec_line

BUILT = {
    "engine.type": "NORMAL",
    "hardware.backend": "cpu",
    "parallel.dp": 1,
    "parallel.ep": 1,
    "parallel.cp": 1,
    "parallel.engram_placement": "replicated",
    "speculative.nextn": 0,
    "speculative.verify": "fixed",
    "schedule.zos": "off",
}
NEEDS = [
    ("engine.type", "COMPLETION"),
    ("hardware.backend", "cuda"),
    ("parallel.dp", 2),
    ("parallel.ep", 8),
    ("parallel.cp", 4),
    ("parallel.engram_placement", "host"),
    ("speculative.nextn", 5),
    ("speculative.verify", "varlen"),
    ("schedule.zos", "on"),
]


def traced(value: Any, source: str = "a.yaml:3:7", inputs: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"value": value, "source": source, "inputs": list(inputs)}


def plan(**changes: Any) -> dict[str, Any]:
    return {key: traced(value) for key, value in {**BUILT, **changes}.items()}


def test_what_is_built_passes() -> None:
    refuse_unbuilt("a", plan())


def test_a_key_that_the_plan_lacks_asks_for_nothing() -> None:
    values = plan()
    del values["speculative.verify"]
    refuse_unbuilt("a", values)


@pytest.mark.parametrize(("key", "value"), NEEDS)
def test_each_mechanism_is_refused_with_key_value_and_line(key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        refuse_unbuilt("a", plan(**{key: value}))
    (fault,) = caught.value.diagnostics
    assert fault.code == "DI300"
    assert fault.place == "a.yaml:3:7"
    assert key in fault.message
    assert repr(value) in fault.message


def test_the_table_is_covered() -> None:
    assert {key for key, _ in NEEDS} == {entry.key for entry in UNBUILT}


def test_all_reasons_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        refuse_unbuilt("a", plan(**{"speculative.nextn": 5, "parallel.ep": 8, "schedule.zos": "on"}))
    assert [d.message.split(": ")[1].split(" is")[0] for d in caught.value.diagnostics] == [
        "parallel.ep",
        "speculative.nextn",
        "schedule.zos",
    ]


def test_the_source_is_that_of_the_line_behind_a_default() -> None:
    values = {
        "speculative.nextn": traced(5, "a.yaml:9:3"),
        "speculative.verify": traced("varlen", "default", ("speculative.nextn", "limits.max")),
        "limits.max": traced(1, "default"),
        "derived": traced(2, "", ("limits.max", "speculative.verify")),
    }
    assert spec_line(values, "speculative.verify") == "a.yaml:9:3"
    assert spec_line(values, "derived") == "a.yaml:9:3"
    assert spec_line(values, "limits.max") == "default"


def test_a_table_s_value_points_at_the_line_that_names_the_table() -> None:
    values = {
        "hardware.backend": traced("cuda", "sm90.yaml: backend"),
        "hardware": traced("sm90", "a.yaml:4:11"),
    }
    with pytest.raises(InputError) as caught:
        refuse_unbuilt("a", values)
    (fault,) = caught.value.diagnostics
    assert fault.place == "a.yaml:4:11"
    assert "hardware.backend is 'cuda' (sm90.yaml: backend)" in fault.message
    assert fault.help.endswith("write hardware: cpu")


def test_a_default_has_no_line() -> None:
    with pytest.raises(InputError) as caught:
        refuse_unbuilt("a", {"schedule.zos": traced("on", "default")})
    (fault,) = caught.value.diagnostics
    assert fault.place == ""
    assert "schedule.zos is 'on' (default)" in fault.message
