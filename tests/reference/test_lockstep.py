"""The compiled scheduler and the reference, call by call: the same answers on random workloads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run_time_config import RunTimeEngine
from scheduler_configs import SPECS, SchedulerSpec

from reference.lockstep import Lockstep
from reference.records import DONE
from reference.scheduler import Scheduler
from reference.workload import EVENTS, Workload, run

DEVELOPER = ("varlen_gain", "tight", "prompt_cp", "completion_varlen")
"""Built in the developer suite; the others are built by the long tests."""

SEEDS = st.integers(0, 2**32 - 1)
EVENT = st.tuples(st.integers(0, 6), st.sampled_from(sorted(EVENTS)), SEEDS)
"""The edge of the step at which it happens, what happens, and the seed of its details."""


def specs() -> list[Any]:
    return [name if name in DEVELOPER else pytest.param(name, marks=pytest.mark.long) for name in SPECS]


@pytest.mark.parametrize("name", specs())
def test_random_workloads(engine: Callable[[str], ModuleType], name: str) -> None:
    module = engine(name)
    worlds = [run(module.Scheduler, module.constants(), seed, ranks=1 + seed % 3) for seed in range(8)]
    assert all(world.counts[DONE] for world in worlds), "every workload comes to its end"


@pytest.mark.parametrize("name", specs())
def test_constants_are_those_of_the_table(engine: Callable[[str], ModuleType], name: str) -> None:
    """The reference reads nothing that the module does not report."""
    constants = SPECS[name].constants()
    reported = engine(name).constants()
    assert {key: reported[key] for key in constants} == constants


class Events(RuleBasedStateMachine):
    """Short histories that hypothesis can shrink: steps, with chosen events at chosen edges of each."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self.module = module

    @initialize(ranks=st.integers(1, 3), seed=SEEDS)
    def start(self, ranks: int, seed: int) -> None:
        self.rng = random.Random(seed)
        constants = self.module.constants()
        self.workload = Workload(self.rng, constants, requests=10**6)
        self.planned: list[tuple[int, str, int]] = []
        self.edge = 0
        self.world = Lockstep(self.module.Scheduler, constants, ranks=ranks, rng=self.rng, event=self.at_edge)

    def at_edge(self, world: Lockstep) -> None:
        for edge, name, seed in self.planned:
            if edge == self.edge:
                self.happen(name, seed)
        self.edge += 1

    def happen(self, name: str, seed: int) -> None:
        self.rng.seed(seed)
        getattr(self.workload, name)(self.rng.choice(self.world.ranks))

    @precondition(lambda self: not self.world.failed)
    @rule(name=st.sampled_from(sorted(EVENTS)), seed=SEEDS)
    def event(self, name: str, seed: int) -> None:
        self.happen(name, seed)

    @precondition(lambda self: not self.world.failed)
    @rule(events=st.lists(EVENT, max_size=3), seed=SEEDS)
    def step(self, events: list[tuple[int, str, int]], seed: int) -> None:
        self.rng.seed(seed)
        self.planned, self.edge = events, 0
        self.world.step()

    @invariant()
    def same_flags(self) -> None:
        for rank in self.world.ranks:
            rank.pair.call("flags")


@pytest.mark.parametrize("name", specs())
def test_chosen_events(engine: Callable[[str], ModuleType], name: str) -> None:
    module = engine(name)
    run_state_machine_as_test(
        lambda: Events(module),  # type: ignore[arg-type] # any factory serves
        settings=settings(max_examples=10, stateful_step_count=40, deadline=None, derandomize=True),
    )


@pytest.mark.long
def test_random_specs(tmp_path: Path) -> None:
    """One build of the same headers, with other limits for every workload."""
    largest = SchedulerSpec(
        seqs=8, nextn=3, varlen=True, model_len=60, tokens=70, prompts=4, block_size=2, spare_blocks=10, spare_slots=2
    )
    engine, rng = RunTimeEngine.build("random_specs", largest, tmp_path), random.Random(7)
    for seed in range(30):
        constants = engine.draw(rng)
        engine.set_limits(constants)
        run(engine.module.Scheduler, constants, seed, ranks=1 + seed % 3)


@pytest.mark.parametrize("name", SPECS)
def test_the_reference_agrees_with_itself(name: str) -> None:
    """The harness runs every spec to its end, also those that are not built here."""
    constants = SPECS[name].constants()
    world = run(lambda: Scheduler(constants), constants, 1, ranks=2)
    assert world.counts[DONE]


def test_another_interval_is_seen() -> None:
    """The comparison can fail: a scheduler with another interval takes another decision."""
    constants = SPECS["plain"].constants()
    other = constants | {"kPrefillAttemptInterval": 1}

    def search() -> None:
        for seed in range(10):
            run(lambda: Scheduler(other), constants, seed, ranks=1)

    with pytest.raises(AssertionError, match="reference"):
        search()
