import json
from fractions import Fraction

import pytest

from deepinfer_gen.codegen.plan import PlanBuilder


def builder() -> PlanBuilder:
    b = PlanBuilder()
    b.given(
        "model.config.sliding_window",
        128,
        source="config.json: text_config.sliding_window",
        why="window",
        unit="tokens",
    )
    b.given("speculative.nextn", 5, source="a.yaml:3:3", why="drafts")
    b.formula(
        "state.swa_ring_tokens",
        "window + nextn + 1",
        window="model.config.sliding_window",
        nextn="speculative.nextn",
        why="ring",
    )
    return b


def frozen(b: PlanBuilder):
    return b.build(name="a", spec_file="a.yaml", spec_digest="0" * 64)


def test_formula_is_the_computation():
    plan = frozen(builder())
    ring = plan.values["state.swa_ring_tokens"]
    assert ring.value == 134
    assert ring.inputs == ("model.config.sliding_window", "speculative.nextn")
    assert plan.integer("state.swa_ring_tokens") == 134


def test_digest_covers_values_and_units_only():
    moved = PlanBuilder()
    moved.given("model.config.sliding_window", 128, source="elsewhere", why="reworded", unit="tokens")
    moved.given("speculative.nextn", 5, source="a.yaml:99:1", why="drafts")
    moved.given("state.swa_ring_tokens", 134, source="default", why="given")
    assert frozen(moved).plan_digest == frozen(builder()).plan_digest
    changed = PlanBuilder()
    changed.given("model.config.sliding_window", 128, source="elsewhere", why="reworded", unit="B")
    changed.given("speculative.nextn", 5, source="a.yaml:99:1", why="drafts")
    changed.given("state.swa_ring_tokens", 134, source="default", why="given")
    assert frozen(changed).plan_digest != frozen(builder()).plan_digest


def test_json_form_is_flat_and_exact():
    b = builder()
    b.given("state.slots_ratio", Fraction(6, 5), source="default", why="ratio")
    b.given("graphs.sizes", [1, 2, 4], source="default", why="sizes")
    content = json.loads(json.dumps(frozen(b).as_dict()))
    assert content["values"]["state.slots_ratio"]["value"] == "6/5"
    assert content["values"]["graphs.sizes"]["value"] == [1, 2, 4]
    assert content["values"]["state.swa_ring_tokens"]["formula"] == "window + nextn + 1"


def test_misuse_is_an_error():
    b = builder()
    with pytest.raises(ValueError, match="derived twice"):
        b.given("speculative.nextn", 1, source="default", why="again")
    with pytest.raises(ValueError, match="operands"):
        b.formula("x", "a + b", a="speculative.nextn", why="b is missing")
    b.table("y", "none", formula="role", inputs={"a": "no.such.key"}, why="dangling")
    with pytest.raises(ValueError, match=r"no\.such\.key"):
        frozen(b)
    other = PlanBuilder()
    other.given("z", True, source="default", why="bool")
    plan = frozen(other)
    with pytest.raises(TypeError, match="not an integer"):
        plan.integer("z")
