"""Public bugs of steps in flight, drafts and preemption: B1, B3, B4, B6, B7, B10, B11, B20."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusal import refused
from scheduler_world import (
    ABORT,
    DECODE,
    ERROR,
    LENGTH,
    PREEMPTED,
    PREFILL,
    Greedy,
    Modest,
    Rank,
    World,
)

MakeWorld = Callable[..., World]
DRAFTS = {"example": 0, "tight": 1, "varlen_gain": 3, "speculative": 5}  # engine -> nextn


def with_frames(make_world: MakeWorld, engine: str, frames: int, requests: int = 2) -> tuple[World, Rank]:
    """Requests that decode, with so many of their steps in flight."""
    world = make_world(engine, seed=frames)
    rank = world.ranks[0]
    assert rank.constants["kNextn"] == DRAFTS[engine]
    for request in range(1, requests + 1):
        rank.add(request, 3 + request, 18)
    while len(rank.last_decode) < requests:
        world.step()
    while len(rank.uncommitted) < frames:
        world.step(commits=False)
    assert rank.scheduler.stats()["uncommitted_steps"] == frames
    return world, rank


@pytest.mark.parametrize("engine", DRAFTS)
@pytest.mark.parametrize("frames", [0, 1, 2])
@pytest.mark.parametrize("event", ["abort", "finish", "both", "pause", "pause and abort", "again"])
def test_b01_an_end_with_steps_in_flight_keeps_every_count(
    make_world: MakeWorld, engine: str, frames: int, event: str
) -> None:
    """A request that left while its speculative steps were in flight drove a counter of placeholders below zero."""
    world, rank = with_frames(make_world, engine, frames)
    before, dropped = rank.requests[1].length, rank.scheduler.stats()["dropped_rows"]
    if "pause" in event:
        rank.scheduler.pause(1)
        rank.scheduler.pause(1)
    if event != "pause":
        rank.finish(1, ERROR if event == "finish" else ABORT)
    if event == "both":
        rank.finish(2, ABORT)
    if event == "again":  # the id comes back before the results of its earlier life
        rank.scheduler.add(1, np.array(rank.requests[1].prompt, np.int32), 9, 0, np.array([], np.int32))
    rank.scheduler.check_invariants()
    while rank.uncommitted:
        left = rank.scheduler.stats()["uncommitted_steps"]
        rank.commit_oldest()
        assert rank.scheduler.stats()["uncommitted_steps"] == left - 1
    ended = {"both": 2, "pause": 0}.get(event, 1)
    if event == "pause":
        assert rank.requests[1].length >= before + frames, "late results of a paused request count"
        rank.scheduler.resume(1)
        rank.scheduler.resume(1)
    else:
        assert rank.requests[1].length == before, "late results change nothing"
    assert rank.scheduler.stats()["dropped_rows"] == dropped + frames * ended
    if event == "again":
        rank.scheduler.abort(1)
        assert rank.scheduler.outcomes().ids.tolist() == [1]
    world.drain()


@pytest.mark.parametrize("engine", DRAFTS)
def test_b01_a_place_that_another_request_took_gets_no_results_of_the_first(make_world: MakeWorld, engine: str) -> None:
    """Results that came late were given to whoever had the request's place by then."""
    world, rank = with_frames(make_world, engine, 1)
    before = rank.requests[1].length
    rank.finish(1, ABORT)
    rank.add_prompted(9, 4)
    world.step(commits=False)  # it is admitted, to the place that was left last
    while rank.uncommitted:
        rank.commit_oldest()
    assert (rank.requests[1].length, rank.requests[9].length) == (before, 5)
    world.drain()


@pytest.mark.parametrize("engine", DRAFTS)
@pytest.mark.parametrize("frames", [0, 1])
def test_b01_preemption_with_a_step_in_flight(make_world: MakeWorld, engine: str, frames: int) -> None:
    """A preempted request's step came back after its counters had been reset, and was counted twice."""
    for seed in range(8):
        world = make_world(engine, deferred=bool(frames), seed=seed)
        rank = world.ranks[0]
        for request in range(1, 9):
            length = 40 if engine == "example" else 8 + request
            rank.add(request, length, length)
        world.drain()  # with check_invariants after every call, and all streams compared
        stats = rank.scheduler.stats()
        if stats["preemptions"] and (stats["dropped_rows"] > 0) == bool(frames):
            return
    raise AssertionError("nobody was preempted")


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("pauses", [1, 2])
def test_b03_a_sequence_that_was_skipped_has_no_placeholders(
    make_world: MakeWorld, deferred: bool, pauses: int
) -> None:
    """A request was skipped for one step with draft placeholders (-1), which then reached the embedding."""
    world = make_world("speculative", deferred=deferred)
    rank = world.ranks[0]
    rank.add(1, 5, 40)
    rank.add(2, 6, 40)
    while len(rank.last_decode) < 2:
        world.step()
    rank.scheduler.pause(1)
    for _ in range(pauses):
        assert world.step() == DECODE
        assert rank.last_decode == [2]
    while rank.uncommitted:
        rank.commit_oldest()
    rank.scheduler.resume(1)
    newest = rank.requests[1].token(rank.requests[1].length - 1)
    assert world.step() == DECODE
    step = rank.scheduler.step()
    row = step.ids.tolist().index(1)
    offset = int(step.q_len[:row].sum())
    assert (step.remap[row], step.q_len[row], step.caps[row]) == (-1, 1, 0), "its drafts are gone"
    assert step.input_ids[offset] == newest
    assert (step.input_ids >= 0).all()
    del step
    world.drain()


def test_b03_no_input_is_ever_a_placeholder(make_world: MakeWorld) -> None:
    """A placeholder id in the input buffer is only allowed where the device replaces it: none is negative."""
    for engine in ("speculative", "varlen"):
        world = make_world(engine, deferred=True)
        rank = world.ranks[0]
        for request in range(1, 8):
            rank.add(request, 5 + request, 30)
        for count in range(60):
            live = [request for request in rank.last_decode if not rank.requests[request].reason]
            if live:
                (rank.scheduler.pause if count % 3 else rank.scheduler.resume)(live[count % len(live)])
            world.step()
            step = rank.scheduler.step()
            assert (step.input_ids >= 0).all()
            assert (step.remap >= -1).all()
            for request in rank.requests:
                if count % 3 == 2 and not rank.requests[request].reason:
                    rank.scheduler.resume(request)
            del step
        for request, expected in rank.requests.items():
            if not expected.reason:
                rank.scheduler.resume(request)
        world.drain()


def test_b04_drafts_of_a_preempted_life_are_not_verified_in_the_next(make_world: MakeWorld) -> None:
    """Draft ids survived a preemption and met the state of a request that had been reset."""
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.draw_drafts = lambda rng, request, columns: None  # type: ignore[method-assign, misc]
    for request in range(1, 6):
        rank.add(request, 20, 44)
    recomputed = 0
    waiting: list[int] = []
    while not recomputed:
        assert world.step() in (PREFILL, DECODE)
        step = rank.scheduler.step()
        if step.kind == 2:
            for request in [request for request in waiting if request in step.ids]:
                row = step.ids.tolist().index(request)
                assert (step.remap[row], step.q_len[row], step.caps[row]) == (-1, 1, 0)
                recomputed += 1
        waiting += step.preempted.tolist()
        del step
    world.drain()


@pytest.mark.parametrize("engine", ["speculative", "varlen", "tight", "completion"])
def test_b06_results_at_once_or_a_step_late_give_the_same_tokens(make_world: MakeWorld, engine: str) -> None:
    """A guard was set in the asynchronous scheduler only, so the synchronous one emitted wrong tokens."""
    outputs = []
    for deferred, seed in ((False, 0), (True, 1), (True, 2)):
        world = make_world(engine, deferred=deferred, seed=seed)
        rank = world.ranks[0]
        for request in range(1, 4):
            if engine == "completion":
                rank.add_prompted(request, 2 + request, max_tokens=9)
            else:
                rank.add(request, 2 + 2 * request, 12, request, list(range(0, 97, 10 + request)))
        world.drain()
        outputs.append({request: (e.output, e.reason) for request, e in rank.requests.items()})
    assert outputs[0] == outputs[1] == outputs[2]
    assert {reason for _, reason in outputs[0].values()} != {PREEMPTED}


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("engine", ["tight", "speculative"])
def test_b07_preemption_frees_blocks_now_and_always_lets_somebody_decode(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    """Frees waited for the step in flight, so preempting freed nothing and the whole running list was eaten."""
    world = make_world(engine, deferred=deferred)
    rank = world.ranks[0]
    for request in range(1, 13):
        rank.add(request, 4 + request, 30)
    preempted = idle = 0
    while True:
        stats = rank.scheduler.stats()
        running, free = stats["running"] + stats["prompted"], stats["free_blocks"]
        action = world.step()
        if action not in (PREFILL, DECODE):
            break
        step = rank.scheduler.step()
        victims = len(step.preempted)
        if step.kind == 2 and running:
            # A sequence whose step in flight yields its last token needs no other.
            idle = 0 if step.num_rows else idle + 1
            assert idle <= deferred, "in every step somebody makes progress"
            # Each victim holds a block at least, and everybody needs as many as two steps of queries fill.
            most = rank.constants["kMaxNumSeqs"] * (1 + 2 * rank.constants["kMaxQ"] // rank.constants["kBlockSize"])
            assert victims <= max(0, most - free)
            assert victims < running
        preempted += victims
        del step
    assert preempted > 0
    rank.check_drained()


def test_b07_nobody_is_preempted_when_that_frees_no_block(make_world: MakeWorld) -> None:
    """The retry loop went on although the victims' blocks could not be used in this step."""
    world = make_world("tight")  # blocks of one token, 32 of them
    rank = world.ranks[0]
    rank.add(1, 10, 13)
    rank.add(2, 6, 14)
    while len(rank.last_decode) < 2 or len(rank.requests[1].output) < 4:
        world.step()
    for request in (1, 2):
        rank.scheduler.begin_transfer(request)
    passed = 0
    while passed < 5 and not rank.requests[1].reason:
        world.step()
        passed += rank.scheduler.step().num_rows < 2
        assert rank.scheduler.stats()["preemptions"] == 0, "its blocks are read from outside"
    for request in (1, 2):
        rank.scheduler.end_transfer(request)
    world.drain()
    assert passed


@pytest.mark.parametrize("engine", ["speculative", "tight", "varlen_gain", "example"])
@pytest.mark.parametrize("deferred", [False, True])
def test_b10_free_and_held_blocks_are_the_pool_after_every_step(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    """Lengths were worked out again when memory was freed, and a retracted request leaked what it had too much."""
    world = make_world(engine, deferred=deferred)
    rank, rng = world.ranks[0], random.Random(7)
    total = rank.constants["kNumBlocks"] - 1
    for request in range(1, 13):
        rank.add(request, rng.randint(1, 20), rng.randint(1, 24))
    for _ in range(150):
        world.step()
        held = [block for blocks in rank.holders().values() for block in blocks]
        assert len(set(held)) == len(held)
        assert rank.scheduler.stats()["free_blocks"] + len(held) == total
        live = [request for request, expected in rank.requests.items() if not expected.reason]
        if live and rng.random() < 0.05:
            request = rng.choice(live)
            rank.finish(request, ABORT)
            with refused(rank.scheduler, f"abort|finish of request {request}"):
                rank.scheduler.abort(request)  # freeing is no second time
    world.drain()


@pytest.mark.parametrize("engine", ["speculative", "padded", "tight", "example", "varlen_gain"])
@pytest.mark.parametrize("draws", [Greedy, Modest])
def test_b11_the_device_never_writes_past_the_blocks(
    make_world: MakeWorld, engine: str, draws: Callable[[int], Any]
) -> None:
    """Capacity grew by one step's drafts while the device was a verification round ahead, past a block's boundary."""
    size = make_world(engine).constants["kBlockSize"]
    for length in range(1, size + 2):  # every length mod block size
        world = make_world(engine, deferred=True)
        world.rng = draws(length)
        rank = world.ranks[0]
        rank.add(length, length, size + 3 * rank.constants["kMaxQ"])
        reach = 0
        while world.step() in (PREFILL, DECODE):
            step = rank.scheduler.step()
            for row in range(step.num_rows):
                # The furthest that this step and the one in flight may write, whatever they accept.
                reach = int(step.k_len[row] - step.q_len[row]) + rank.constants["kMaxQ"]
                if step.kind == 2:
                    assert reach <= int((step.block_table[row] > 0).sum()) * size
            del step
        assert reach > length
        rank.check_drained()


def test_b20_arrays_of_a_step_are_not_written_while_somebody_reads_them(make_world: MakeWorld) -> None:
    """The buffers of a step that still ran were filled for the next one."""
    world = make_world("speculative", deferred=True)
    rank = world.ranks[0]
    rank.add(1, 5, 40)
    world.until(DECODE)
    positions = rank.scheduler.step().positions
    before = positions.tolist()
    with refused(rank.scheduler, "begin_step: 1 arrays of the last one are still held"):
        rank.scheduler.begin_step(world.flags)
    rank.commit_oldest()  # other calls leave them alone
    rank.add(2, 5, 40)
    assert positions.tolist() == before
    del positions
    world.drain()
    assert rank.requests[1].reason == LENGTH
