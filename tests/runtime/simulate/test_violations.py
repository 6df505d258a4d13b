"""Every check can fail: schedulers that go wrong in one way each, and the sentence that ends the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated import parsed, request
from tiny_spec import TINY

from deepinfer_gen.runtime.simulate.run import simulate
from deepinfer_gen.runtime.simulate.violation import ViolationError

from .conftest import EngineOf

LINES = [request("a", 60, 50, accept_rate=0.8), request("b", 40, 30, rank=1), request("c", 9, 9)]
ARRAYS = (
    "ids", "q_len", "k_len", "prefill_len", "slot", "remap", "samples", "block_table", "history", "input_ids",
    "positions", "row_of_token", "caps", "clone_blocks", "clone_states", "zero_states", "ignored", "preempted", "loads",
)  # fmt: skip
Change = Callable[[SimpleNamespace], None]


class Wrong:
    """A real scheduler whose steps, actions or commits are changed on the way out, from its fifth decode step on."""

    def __init__(self, real: Any, **changes: Any) -> None:
        self._real = real
        self._changes = changes
        self._decodes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def step(self) -> Any:
        view = self._real.step()
        copy = SimpleNamespace(**{name: getattr(view, name).copy() for name in ARRAYS})
        for name in ("step_id", "kind", "num_rows", "total_q", "graph", "provisional"):
            setattr(copy, name, getattr(view, name))
        self._decodes += view.kind == 2
        if "step" in self._changes and view.kind == 2 and self._decodes >= 5:
            self._changes["step"](copy)
        if "prefill" in self._changes and view.kind == 1:
            self._changes["prefill"](copy)
        return copy

    def begin_step(self, flags: Any) -> int:
        action = int(self._real.begin_step(flags))
        change = self._changes.get("action")
        return action if change is None or self._decodes < 5 else int(change(action))

    def commit(self, *results: Any) -> Any:
        done = self._real.commit(*results)
        if "commit" not in self._changes or self._decodes < 5:
            return done
        copy = SimpleNamespace(ids=done.ids.copy(), emitted=done.emitted.copy(), reasons=done.reasons.copy())
        self._changes["commit"](copy)
        return copy

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self._real.stats()
        return {**stats, **self._changes.get("stats", {})}


def put(name: str, index: Any, value: Any) -> Change:
    def change(step: SimpleNamespace) -> None:
        getattr(step, name)[index] = value

    return change


def more(name: str) -> Change:
    def change(step: SimpleNamespace) -> None:
        setattr(step, name, getattr(step, name) + 1)

    return change


CASES: list[tuple[str, dict[str, Any]]] = [
    ("B3", {"step": put("remap", 0, -1)}),
    ("B24", {"step": put("slot", -1, 1)}),
    ("B24", {"step": put("remap", -1, 0)}),
    ("I2", {"action": lambda action: 3}),
    ("I11", {"step": put("block_table", (0, 0), 11)}),
    ("I12", {"step": put("slot", 0, 0)}),
    ("I12", {"prefill": put("zero_states", slice(None), 0)}),
    ("I13", {"step": put("block_table", (0, slice(1, None)), 0)}),
    ("I13", {"prefill": put("block_table", (0, slice(None)), 0)}),
    ("I14", {"step": more("total_q")}),
    ("I14", {"step": more("graph")}),
    ("I14", {"step": put("row_of_token", 0, 1)}),
    ("I14", {"step": put("positions", 0, 0)}),
    ("I15", {"step": put("caps", 0, 99)}),
    ("I16", {"step": put("slot", 0, 5)}),
    ("I17", {"step": put("ids", 0, 2)}),
    ("I17", {"prefill": put("input_ids", 0, 7)}),
    ("I17", {"prefill": put("history", (0, 0), 7)}),
    ("I17", {"commit": put("emitted", slice(None), 0)}),
    ("I17", {"commit": put("reasons", slice(None), 2)}),
    ("I19", {"prefill": put("samples", 0, 0)}),
    ("I19", {"prefill": put("prefill_len", 0, 7)}),
    ("I20", {"stats": {"free_blocks": 3}}),
    ("I22", {"stats": {"running": 9}}),
]


@pytest.mark.parametrize(("prop", "changes"), CASES, ids=[f"{p}-{'-'.join(c)}-{i}" for i, (p, c) in enumerate(CASES)])
def test_a_broken_rule_is_named(prop: str, changes: dict[str, Any], engine_of: EngineOf, tmp_path: Path) -> None:
    engine = engine_of("recompute")
    made: list[Any] = []

    def scheduler() -> Any:
        made.append(Wrong(engine.extension.Scheduler(), **(changes if not made else {})))
        return made[-1]

    extension = SimpleNamespace(constants=engine.extension.constants, Scheduler=scheduler)
    extension.plan_digest = engine.extension.plan_digest
    workload, _ = parsed(tmp_path, LINES, ranks=2)
    with pytest.raises(ViolationError) as caught:
        simulate([replace(engine, extension=extension)] * 2, workload, seed=3)
    assert caught.value.prop == prop, caught.value.sentence(3)
    assert f"{prop} does not hold (step {caught.value.step}" in caught.value.sentence(3)
    assert "seed 3)" in caught.value.sentence(3)


def test_ranks_that_differ_in_their_action_are_told_apart(engine_of: EngineOf, tmp_path: Path) -> None:
    """One rank idles while the other decodes."""
    engine = engine_of("recompute")
    made: list[Any] = []

    def scheduler() -> Any:
        made.append(
            Wrong(engine.extension.Scheduler(), action=(lambda action: 3) if not made else (lambda action: action))
        )
        return made[-1]

    extension = SimpleNamespace(
        constants=engine.extension.constants, Scheduler=scheduler, plan_digest=engine.extension.plan_digest
    )
    workload, _ = parsed(tmp_path, LINES, ranks=2)
    with pytest.raises(ViolationError) as caught:
        simulate([replace(engine, extension=extension)] * 2, workload)
    assert caught.value.sentence(0) == (
        f"I2 does not hold (step {caught.value.step}, seed 0): the ranks come to different actions: rank 0: IDLE,"
        " rank 1: DECODE"
    )


def test_a_state_that_grows_is_found_at_the_end(engine_of: EngineOf, tmp_path: Path) -> None:
    engine = engine_of(TINY)
    workload, _ = parsed(tmp_path, [request("a", 9, 9)])

    class Counting(Wrong):
        def fingerprint(self) -> int:
            self._decodes += 1
            return self._decodes

    extension = SimpleNamespace(
        constants=engine.extension.constants, Scheduler=lambda: Counting(engine.extension.Scheduler())
    )
    with pytest.raises(ViolationError, match="the scheduler's state at the end is not its first one"):
        simulate([replace(engine, extension=extension)], workload)
