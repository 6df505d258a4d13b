"""Random workloads on one rank and on groups: every step keeps every rule, every request ends as it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_world import World

REQUESTS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 63),
        "max_tokens": st.integers(1, 70),
        "min_tokens": st.integers(0, 10),
        "end_ids": st.lists(st.integers(0, 96), max_size=4),
    }
)
# What happens between two calls: a request arrives on a rank, a request ends from outside, or a step runs.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 7), REQUESTS),
        st.tuples(st.just("end"), st.integers(0, 7), st.tuples(st.integers(0, 30), st.sampled_from([1, 3, 5]))),
        st.tuples(st.just("step"), st.integers(1, 8), st.none()),
    ),
    max_size=40,
)


def play(world: World, events: list[tuple[str, int, Any]]) -> None:
    next_id = 1
    for kind, number, detail in events:
        rank = world.ranks[number % len(world.ranks)]
        if kind == "add":
            detail = {**detail, "min_tokens": min(detail["min_tokens"], detail["max_tokens"])}
            rank.add(next_id, **detail)
            next_id += 1
        elif kind == "end" and rank.requests:
            which, reason = detail
            rank.finish(sorted(rank.requests)[which % len(rank.requests)], reason)
            rank.scheduler.check_invariants()
        elif kind == "step":
            for _ in range(number):
                world.step()
    world.drain()


@pytest.mark.parametrize("engine", ["example", "speculative"])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_random_workload(make_world: Callable[..., World], engine: str, deferred: bool, ranks: int) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(events=EVENTS, seed=st.integers(0, 1000))
    def run(events: list[tuple[str, int, Any]], seed: int) -> None:
        play(make_world(engine, ranks=ranks, deferred=deferred, seed=seed), events)

    run()
