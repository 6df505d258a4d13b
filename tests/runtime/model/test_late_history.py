"""N-grams of rows whose newest ids the host does not know yet.

Their histories are completed on the device, here on the steps of random schedules, and are those of plain lists of ids.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_ranks import NgramRank
from reference.lockstep import Lockstep
from reference.scheduler import Scheduler
from reference.workload import Workload
from scheduler_configs import SPECS

NAMES = ("recompute_cp", "varlen_gain", "padded_varlen", "tight", "completion_varlen", "plain", "single")
"""Drafts 0, 1, 3 and 5; fixed and varlen lengths; histories of 3 and 2 ids; preempted requests that come again."""

WITH_DRAFTS = ("placeholders", "accepts", "rejects", "forks", "moved rows")


def look(name: str, seed: int, steps: int) -> Counter[str]:
    """What happened in a random workload, every step of which the rank has looked at."""
    constants, rng = SPECS[name].constants(), random.Random(seed)
    workload = Workload(rng, constants, requests=30)
    world = Lockstep(lambda: Scheduler(constants), constants, ranks=1, rng=rng, event=workload)
    world.late = rng.random() < 0.9
    (pair,) = (rank.pair for rank in world.ranks)
    rank = NgramRank(pair, constants, rng)
    world.ranks = [rank]
    workload.begin(world)
    for _ in range(steps):
        if world.failed:
            break
        world.step()
    return rank.seen


def search(name: str, examples: int) -> Counter[str]:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32 - 1))
    def run(seed: int) -> None:
        seen.update(look(name, seed, 60))

    run()
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_trap_21_newest_ids_come_from_the_device(name: str) -> None:
    seen = search(name, 4)
    happened = WITH_DRAFTS if SPECS[name].nextn else ("decode rows",)
    assert all(seen[event] for event in happened), seen
    assert bool(seen["splits"]) == SPECS[name].varlen


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_trap_21_long(name: str) -> None:
    assert search(name, 60)["decode rows"] > 1000
