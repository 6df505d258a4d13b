"""Random workloads with random events: no rule breaks, and every request ends."""

from __future__ import annotations

import random

import pytest
from simulated import random_events, random_lines
from tiny_spec import TINY

from .conftest import Simulated

FAST = [("recompute", 1), ("recompute", 2), (TINY, 3)]
ALL = [*FAST, ("prompt", 1), ("prompt", 2), ("completion", 1), ("completion", 3)]


def check(simulated: Simulated, engine: str, ranks: int, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        lines = random_lines(rng, ranks, forks=engine != "prompt")
        events = random_events(rng, lines, ranks)
        outcome, _ = simulated(engine, lines, events, ranks, seed=seed, steps=5000)
        assert outcome.end.how == "done", (engine, ranks, seed, outcome.summary)
        assert "unfinished" not in outcome.summary[1]


@pytest.mark.parametrize(("engine", "ranks"), FAST)
def test_i20_random_workloads_end(simulated: Simulated, engine: str, ranks: int) -> None:
    check(simulated, engine, ranks, range(6))


@pytest.mark.long
@pytest.mark.parametrize(("engine", "ranks"), ALL)
def test_i20_many_random_workloads_end(simulated: Simulated, engine: str, ranks: int) -> None:
    check(simulated, engine, ranks, range(100, 160))
