"""Invariants I14, I15, I17, I18, I20: what steps verify, what comes out, and how requests end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduler_world import ABORT, DECODE, LENGTH, PREEMPTED, PREFILL, STOP, VOTE, Rank, World

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

MakeWorld = Callable[..., World]
ERRORS = Path(__file__).parent.parent / "errors"


def begin(scheduler: Any, flags: Any) -> int:
    """The step of a rank alone, with its votes."""
    action = scheduler.begin_step(flags)
    while action == VOTE:
        action = scheduler.resolve_vote(scheduler.vote())
    return int(action)


def test_i14_counts_outside_the_verified_length_are_refused(make_world: MakeWorld) -> None:
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 5, 50)
    world.until(DECODE)
    rank.scheduler.begin_step(world.flags)
    step = rank.scheduler.step()
    assert step.q_len[0] == 6
    confidences = np.zeros((1, 5), np.uint16)
    tokens = np.zeros((1, 6), np.int32)
    before = rank.scheduler.fingerprint()
    for count in (0, 7, -1):
        with pytest.raises(ValueError, match=rf"count {count} is not in 1\.\.6"):
            rank.scheduler.commit(step.step_id, tokens, np.array([count], np.int32), confidences)
    assert rank.scheduler.fingerprint() == before, "a refused commit changes nothing"
    assert rank.scheduler.commit(step.step_id, tokens, np.array([6], np.int32), confidences).emitted[0] == 6


@pytest.mark.parametrize("engine", ["speculative", "varlen", "padded", "completion"])
@pytest.mark.parametrize("deferred", [False, True])
def test_i14_the_queries_of_a_step_fill_its_graph_and_no_more(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    # check_decode compares every step's graph and lengths; here all graph sizes are met, also by varied lengths.
    world = make_world(engine, deferred=deferred)
    rank = world.ranks[0]
    met = set()
    for request in range(1, 16):
        if engine == "completion":
            rank.add_prompted(request, 1 + request, max_tokens=4 + request)
        else:
            rank.add(request, 1 + request, 4 + request)
    for _ in range(120):
        if world.step() == DECODE:
            met.add(rank.scheduler.step().graph)
    world.drain()
    assert len(met) >= 3


@pytest.mark.parametrize("engine", ["speculative", "varlen", "tight", "padded"])
@pytest.mark.parametrize("delivered", range(6))
def test_i15_a_row_verifies_a_prefix_of_the_drafts_that_came_with_its_prompt(
    make_world: MakeWorld, engine: str, delivered: int
) -> None:
    scheduler = make_world(engine).ranks[0].scheduler
    constants = make_world(engine).constants
    nextn = constants["kNextn"]
    delivered = min(delivered, nextn)
    scheduler.add(1, np.arange(5, dtype=np.int32), 20, 0, np.array([], np.int32))
    assert begin(scheduler, None) == PREFILL
    tokens = np.full((1, nextn + 1), -1, np.int32)
    drafts = [71 + j for j in range(delivered)]
    tokens[0, : 1 + delivered] = [70, *drafts]
    tokens[0, 2 + delivered :] = 99  # behind the first negative one nothing counts
    flags = scheduler.flags()
    confidences = np.linspace(60000, 30000, nextn).astype(np.uint16).reshape(1, nextn)
    scheduler.commit(scheduler.step().step_id, tokens, np.array([1], np.int32), confidences)
    while begin(scheduler, flags) != DECODE:
        flags = scheduler.flags()
    step = scheduler.step()
    verified = int(step.q_len[0]) - 1
    assert step.caps.tolist() == [delivered]
    assert verified <= delivered
    assert verified == delivered or engine == "varlen"
    assert step.input_ids[: 1 + verified].tolist() == [70, *drafts[:verified]]
    assert step.positions[: 1 + verified].tolist() == list(range(5, 6 + verified))


def test_i17_nothing_is_emitted_after_an_end_id_inside_the_accepted_drafts(make_world: MakeWorld) -> None:
    scheduler = make_world("speculative").ranks[0].scheduler
    scheduler.add(1, np.arange(5, dtype=np.int32), 50, 3, np.array([77], np.int32))
    confidences = np.zeros((1, 5), np.uint16)
    flags, tokens, emitted = None, [[77, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [77, 5, 77, 9, 9, 9]], []
    for row, count in zip(tokens, [1, 1, 6], strict=True):
        begin(scheduler, flags)
        step_id = scheduler.step().step_id
        flags = scheduler.flags()
        done = scheduler.commit(step_id, np.array([row], np.int32), np.array([count], np.int32), confidences)
        emitted.append((int(done.emitted[0]), int(done.reasons[0])))
        del done
    # The first 77 comes before min_tokens = 3; the one that is the third token ends the request, the rest is dropped.
    assert emitted == [(1, 0), (1, 0), (1, STOP)]
    ended = scheduler.outcomes()
    assert (ended.ids.tolist(), ended.reasons.tolist(), ended.stop_tokens.tolist()) == ([1], [STOP], [77])


@pytest.mark.parametrize("engine", ["speculative", "varlen", "tight", "completion"])
@pytest.mark.parametrize("deferred", [False, True])
def test_i17_every_stream_is_the_oracle_s_up_to_its_end(make_world: MakeWorld, engine: str, deferred: bool) -> None:
    # check_drained compares every stream; these end in every way, inside drafts too.
    world = make_world(engine, deferred=deferred)
    rank = world.ranks[0]
    for request in range(1, 16):
        if engine == "completion":
            rank.add_prompted(request, request, max_tokens=2 + request)
        else:
            rank.add(request, request, 5 + request, request % 5, list(range(request, 97, 9 + request)))
    for count in range(200):
        world.step()
        running = [request for request in rank.last_decode if not rank.requests[request].reason]
        if count % 6 == 3 and running:
            rank.finish(running[-1], ABORT)
    world.drain()
    reasons = {expected.reason for expected in rank.requests.values()}
    assert reasons >= ({LENGTH, ABORT} if engine == "completion" else {STOP, LENGTH, ABORT})


def preempt(world: World, rank: Rank) -> list[int]:
    """Step until somebody is preempted."""
    for _ in range(100):
        assert world.step() in (PREFILL, DECODE)
        preempted: list[int] = rank.scheduler.step().preempted.tolist()
        if preempted:
            return preempted
    raise AssertionError("nobody was preempted")


def test_i18_the_preempted_request_ends_once_and_returns_everything_in_that_step(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    for request in range(1, 5):
        rank.add(request, 40, 40)
    preempted: list[int] = []
    while not preempted:
        before = {request: len(rank.requests[request].output) for request in rank.requests}
        assert world.step() in (PREFILL, DECODE)
        preempted = rank.scheduler.step().preempted.tolist()
    assert len(preempted) == 1
    assert before[preempted[0]] == max(before.values()), "the longest output gives way"
    assert rank.requests[preempted[0]].reason == PREEMPTED
    table = rank.scheduler.step().block_table
    assert rank.scheduler.stats()["free_blocks"] == 24 - int((table > 0).sum())
    del table
    world.drain()
    reasons = [expected.reason for expected in rank.requests.values()]
    assert reasons.count(PREEMPTED) == rank.scheduler.stats()["preemptions"] >= 1


def test_i18_a_completion_engine_ends_whom_it_preempts(make_world: MakeWorld) -> None:
    world = make_world("completion")
    rank = world.ranks[0]
    for request in range(1, 5):
        rank.add_prompted(request, 13, max_tokens=30)
    for _ in range(3):
        world.step()
    victims = preempt(world, rank)
    assert {rank.requests[request].reason for request in victims} == {PREEMPTED}
    world.drain()


def test_i18_a_completion_engine_that_recomputes_is_refused_when_its_spec_is_read() -> None:
    with pytest.raises(InputError, match="cannot recompute a preempted request"):
        resolve(load_spec(ERRORS / "completion-recompute.yaml"))


@pytest.mark.parametrize("deferred", [False, True])
def test_i18_recomputation_ends_nothing_and_changes_no_output(make_world: MakeWorld, deferred: bool) -> None:
    world = make_world("speculative", deferred=deferred)
    rank = world.ranks[0]
    for request in range(1, 6):
        rank.add(request, 20, 44)
    world.drain()
    assert rank.scheduler.stats()["preemptions"] > 0
    assert {expected.reason for expected in rank.requests.values()} == {LENGTH}
    if deferred:
        assert rank.scheduler.stats()["dropped_rows"] > 0, "a frame in flight was dropped"


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_i20_an_abort_in_any_state_leaves_nothing_behind(make_world: MakeWorld, steps: int, deferred: bool) -> None:
    # After 0..5 steps the request of 90 tokens is waiting, partly prefilled, running with 0, 1, 2, 3 tokens.
    world = make_world("example", deferred=deferred)
    rank = world.ranks[0]
    rank.add(1, 90, 6)
    for _ in range(steps):
        world.step()
    rank.finish(1, ABORT)
    rank.scheduler.check_invariants()
    assert rank.scheduler.stats()["free_blocks"] == 24
    output = list(rank.requests[1].output)
    world.drain()
    assert rank.requests[1].output == output
    assert rank.requests[1].reason == ABORT


@pytest.mark.parametrize("state", ["incoming", "loading", "paused", "branch", "draining"])
def test_i20_an_abort_of_a_request_that_waits_for_its_caller(make_world: MakeWorld, state: str) -> None:
    world = make_world("example", loads=False)
    rank = world.ranks[0]
    rank.add_prompted(1, 20, max_tokens=30)
    if state != "incoming":
        world.step()
    if state in ("paused", "branch", "draining"):
        rank.fill_loads()
        world.step()
    if state == "paused":
        rank.scheduler.pause(1)
        world.step()
    if state == "branch":
        rank.fork(1, [2])
        rank.finish(2, ABORT)
    if state == "draining":
        rank.scheduler.begin_transfer(1)
    rank.finish(1, ABORT)
    if state in ("loading", "draining"):
        assert rank.scheduler.stats()["draining"] == 1
        rank.loads = []
        rank.scheduler.end_transfer(1)
    assert rank.scheduler.stats()["free_blocks"] == 24
    world.drain()


def test_i20_an_abort_while_its_step_runs_drops_the_step_s_tokens(make_world: MakeWorld) -> None:
    for kind in (PREFILL, DECODE):
        world = make_world("example")
        rank = world.ranks[0]
        rank.add(1, 4, 9)
        rank.add(2, 4, 9)
        if kind == DECODE:
            world.until(DECODE)
        assert world.step(commits=False) == kind
        before = len(rank.requests[1].output)
        rank.finish(1, ABORT)
        rank.commit_oldest()
        assert len(rank.requests[1].output) == before
        assert len(rank.requests[2].output) > 0
        world.drain()
