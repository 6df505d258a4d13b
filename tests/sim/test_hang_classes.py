"""The ways in which groups of ranks have hung in public, one class a test, on a group of schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scheduler_world import DECODE, DONE, FAIL, IDLE, PREFILL, VOTE, World

MakeWorld = Callable[..., World]
ENGINES = ["example", "padded", "prompt_cp", "completion"]


def add(world: World, rank: int, request: int, length: int, max_tokens: int) -> None:
    if world.constants["kEngineType"] == "COMPLETION":
        world.ranks[rank].add_prompted(request, length, max_tokens=max_tokens)
    else:
        world.ranks[rank].add(request, length, max_tokens)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("deferred", [False, True])
def test_hang_an_idle_rank_never_returns_early(make_world: MakeWorld, engine: str, deferred: bool) -> None:
    world = make_world(engine, ranks=3, deferred=deferred)
    add(world, 1, 1, 9, 6)
    steps = []
    while (action := world.step()) != DONE:
        if action in (PREFILL, DECODE):
            steps.append([rank.scheduler.step().kind for rank in world.ranks])
    assert steps
    assert all(len(set(kinds)) == 1 and kinds[0] for kinds in steps), "every rank runs a step of the same kind"


@pytest.mark.parametrize("engine", ENGINES)
def test_hang_no_exchange_depends_on_what_one_rank_knows(make_world: MakeWorld, engine: str) -> None:
    # Ranks end their work at very different times; all exchange until the last one has.
    world = make_world(engine, ranks=3)
    for rank in range(3):
        add(world, rank, 1, 3, 2 + 8 * rank)
    done = []
    while world.step() != DONE:
        done.append([bool(rank.requests[1].reason) for rank in world.ranks])
    assert [True, False, False] in done or engine == "prompt_cp"
    assert done[-1] == [True, True, True]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("when", ["at the start", "while it works", "while it idles", "with a step in flight"])
def test_hang_one_rank_that_fails_ends_all(make_world: MakeWorld, engine: str, when: str) -> None:
    world = make_world(engine, ranks=3, deferred=when == "with a step in flight")
    if when == "while it idles":
        world.ranks[0].scheduler.set_pending(True)
        world.step()
    elif when != "at the start":
        for request in range(1, 9):
            add(world, 0, request, 9, 40)
        world.until(PREFILL if engine == "prompt_cp" else DECODE)
    world.ranks[2].scheduler.set_error("out of paper")
    assert world.until(FAIL) <= 3, "within the exchange that follows"
    reasons = [rank.scheduler.fail_reason() for rank in world.ranks]
    assert reasons == ["another rank of the group reported an error"] * 2 + ["out of paper"]
    assert {int(rank.scheduler.begin_step(None)) for rank in world.ranks} == {FAIL}


@pytest.mark.parametrize("engine", ENGINES)
def test_hang_a_request_after_the_record_that_led_to_done_belongs_to_the_next_call(
    make_world: MakeWorld, engine: str
) -> None:
    world = make_world(engine, ranks=2)
    add(world, 0, 1, 3, 2)
    schedulers = [rank.scheduler for rank in world.ranks]
    while world.flags is None or world.flags[0] or not world.ranks[0].requests[1].reason:
        world.step()
    if world.votes_on:
        assert [s.begin_step(world.flags) for s in schedulers] == [VOTE] * 2
        votes = np.max([s.vote() for s in schedulers], axis=0)
        add(world, 1, 2, 3, 2)  # behind its vote
        actions = [s.resolve_vote(votes) for s in schedulers]
    else:
        flags = world.flags
        while flags[1] or flags[2]:
            world.step()
            flags = world.flags
        add(world, 1, 2, 3, 2)  # behind its record
        actions = [s.begin_step(flags) for s in schedulers]
    assert [int(action) for action in actions] == [DONE, DONE], "on all ranks, also on the one that knows better"
    world.flags = None
    world.group.decode_steps, world.group.burst, world.group.idle = 0, 0, True
    world.ranks[1].loads += schedulers[1].step().loads.tolist()
    world.ranks[1].fill_loads()
    assert world.step() in (PREFILL, IDLE)
    world.drain()
    assert world.ranks[1].requests[2].reason


@pytest.mark.parametrize("engine", ENGINES)
def test_hang_a_group_starts_with_the_same_exchange_on_all_ranks(make_world: MakeWorld, engine: str) -> None:
    world = make_world(engine, ranks=3)
    add(world, 0, 1, 9, 3)
    schedulers = [rank.scheduler for rank in world.ranks]
    first = {int(s.begin_step(None)) for s in schedulers}
    assert first == ({VOTE} if world.votes_on else {IDLE})
    shapes: set[Any] = {(s.vote().shape if world.votes_on else s.flags().shape) for s in schedulers}
    assert shapes == {(6,)}


@pytest.mark.parametrize("deferred", [False, True])
def test_hang_results_a_step_late_on_many_ranks(make_world: MakeWorld, deferred: bool) -> None:
    world = make_world("speculative", ranks=4, deferred=deferred)
    for request in range(1, 20):
        world.ranks[request % 3].add(request, 1 + request, 30)
    world.drain()


def test_hang_a_group_that_can_do_nothing_says_so(make_world: MakeWorld) -> None:
    # No rank can prefill, decode or expects anything: an error on all ranks instead of exchanges for ever.
    for engine, record in (("prompt_cp", [0, 1, 0, 0, 0, 0]), ("completion", [0, 1, 0, 0, 0, 1])):
        world = make_world(engine, ranks=2)
        schedulers = [rank.scheduler for rank in world.ranks]
        assert [s.begin_step(None) for s in schedulers] == [IDLE] * 2
        assert [s.begin_step(np.array(record, np.int32)) for s in schedulers] == [FAIL] * 2
        assert all(s.fail_reason().startswith("stalled: unfinished requests") for s in schedulers)


@pytest.mark.parametrize("engine", ENGINES)
def test_hang_pauses_on_some_ranks_keep_the_group_in_step(make_world: MakeWorld, engine: str) -> None:
    world = make_world(engine, ranks=2)
    add(world, 0, 1, 9, 9)
    add(world, 1, 1, 9, 9)
    world.ranks[0].scheduler.pause(1)
    for _ in range(30):
        world.step()
    assert not world.ranks[0].requests[1].reason
    assert world.ranks[1].requests[1].reason
    assert world.step() == IDLE, "somebody is paused, so the group waits and does not end"
    world.ranks[0].scheduler.resume(1)
    world.drain()


@pytest.mark.parametrize("engine", ENGINES)
def test_hang_every_decision_can_be_read_on_every_rank(make_world: MakeWorld, engine: str) -> None:
    # The watchdog was silent on the very rank that was idle: what a rank decided is there on idle ones too.
    world = make_world(engine, ranks=2)
    add(world, 0, 1, 9, 12)
    points = set()
    while world.step() != DONE:
        decisions = [rank.scheduler.decision() for rank in world.ranks]
        assert len({(d.point, d.go, d.decode_counter) for d in decisions}) == 1
        points.add(decisions[1].point)
    assert points >= ({0, 2} if world.votes_on else {0})
