"""Arrays that borrow the engine's memory: one that is held keeps the next call out, and a view that is over says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusal import refused
from scheduler_world import DECODE, VOTE, World

MakeWorld = Callable[..., World]
STEP = [
    "ids", "q_len", "k_len", "prefill_len", "slot", "remap", "samples", "block_table", "history", "input_ids",
    "positions", "row_of_token", "caps", "clone_blocks", "clone_states", "zero_states", "ignored", "preempted", "loads",
]  # fmt: skip
RESULTS = ["ids", "emitted", "reasons"]


def decoding(make_world: MakeWorld) -> tuple[World, Any]:
    world = make_world("speculative")
    world.ranks[0].add(1, 5, 50)
    world.until(DECODE)
    return world, world.ranks[0].scheduler


@pytest.mark.parametrize("name", STEP)
def test_no_step_begins_while_an_array_of_the_last_one_is_held(make_world: MakeWorld, name: str) -> None:
    world, scheduler = decoding(make_world)
    array = getattr(scheduler.step(), name)
    row = array[:1]
    with refused(scheduler, "begin_step: 1 arrays of the last one are still held; copy what is needed longer"):
        scheduler.begin_step(world.flags)
    second = scheduler.step().q_len
    with refused(scheduler, "begin_step: 2 arrays of the last one are still held"):
        scheduler.begin_step(world.flags)
    del array, second
    with refused(scheduler, "begin_step: 1 arrays"):  # a part of an array holds it too
        scheduler.begin_step(world.flags)
    del row
    world.step()


@pytest.mark.parametrize("name", STEP)
def test_a_step_is_over_when_the_next_one_begins(make_world: MakeWorld, name: str) -> None:
    world, scheduler = decoding(make_world)
    step = scheduler.step()
    copy = getattr(step, name).copy()
    world.step()
    with refused(scheduler, "this view is over: begin_step was called since it was made"):
        getattr(step, name)
    assert copy is not None
    assert getattr(scheduler.step(), name) is not None
    assert step.step_id + 1 == scheduler.step().step_id, "what is no array belongs to the view"


def test_votes_keep_the_arrays_of_their_step(make_world: MakeWorld) -> None:
    # begin_step gave the memory away: what is held while a vote is open keeps the following begin_step out only.
    world = make_world("example")
    world.ranks[0].add(1, 5, 9)
    scheduler = world.ranks[0].scheduler
    action = scheduler.begin_step(None)
    while action == VOTE:
        action = scheduler.resolve_vote(scheduler.vote())
    ids = scheduler.step().ids
    flags = scheduler.flags()
    scheduler.commit(1, np.zeros((1, 1), np.int32), np.array([1], np.int32), np.zeros((1, 0), np.uint16))
    with refused(scheduler, "begin_step: 1 arrays"):
        scheduler.begin_step(flags)
    assert ids.tolist() == [1]


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_a_commit(make_world: MakeWorld, name: str) -> None:
    world, scheduler = decoding(make_world)
    results = np.ones((1, 6), np.int32), np.array([1], np.int32), np.zeros((1, 5), np.uint16)
    flags = world.flags
    for _ in range(2):
        assert scheduler.begin_step(flags) == DECODE
        flags = scheduler.flags()
    first = scheduler.step().step_id - 1
    done = scheduler.commit(first, *results)
    held = getattr(done, name)
    with refused(scheduler, "commit: 1 arrays of the last one are still held"):
        scheduler.commit(first + 1, *results)
    del held
    scheduler.commit(first + 1, *results)
    with refused(scheduler, "this view is over: commit was called since it was made"):
        getattr(done, name)


def test_outcomes(make_world: MakeWorld) -> None:
    _, scheduler = decoding(make_world)
    scheduler.abort(1)
    ended = scheduler.outcomes()
    for name in ("ids", "reasons", "stop_tokens"):
        held = getattr(ended, name)
        with refused(scheduler, "outcomes: 1 arrays of the last one are still held"):
            scheduler.outcomes()
        del held
    scheduler.outcomes()
    for name in ("ids", "reasons", "stop_tokens"):
        with refused(scheduler, "this view is over: outcomes was called since it was made"):
            getattr(ended, name)


def test_a_refused_step_leaves_the_views_of_the_last_one_valid(make_world: MakeWorld) -> None:
    world, scheduler = decoding(make_world)
    step = scheduler.step()
    with refused(scheduler, "flags must be"):
        scheduler.begin_step(np.zeros(3, np.int32))
    assert step.ids[0] == 1
    world.step()


def test_records_and_places_are_copies(make_world: MakeWorld) -> None:
    world, scheduler = decoding(make_world)
    flags, blocks = scheduler.flags(), scheduler.blocks(1)
    blocks[:] = 0
    flags[:] = 9
    world.step()
    assert scheduler.blocks(1).all()
    assert flags.tolist() == [9] * 6


def test_a_clone_lends_its_own_memory(make_world: MakeWorld) -> None:
    world, scheduler = decoding(make_world)
    clone = scheduler.clone()
    ids = clone.step().ids
    assert not np.shares_memory(ids, scheduler.step().ids)
    world.step()
    assert ids.tolist() == [1] + [0] * (len(ids) - 1)
    assert clone.begin_step(clone.flags()) == DECODE
    held = clone.step().ids
    with refused(clone, "begin_step: 1 arrays"):
        clone.begin_step(clone.flags())
    assert held[0] == 1
