"""Invariants I1 to I8 and I21: what the ranks of a group agree on, and when they prefill.

Each has a scene of its own here; the random workloads keep all of them at every step. The example engine has 4
sequences, 24 blocks of 8 tokens, 64 prompt tokens a step, intervals 7 (ALL) and 10 (ANY), a burst of 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scheduler_world import DECODE, DONE, IDLE, PREFILL, VOTE, World

MakeWorld = Callable[..., World]
NONE, ALL, ANY = range(3)  # points


class Recorder:
    """A scheduler that remembers what each call of the group protocol made its rank do next."""

    CALLS = ("begin_step", "resolve_vote", "vote", "flags")

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.log: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.scheduler, name)
        return (lambda *arguments: self.record(name, method(*arguments))) if name in self.CALLS else method

    def record(self, name: str, result: Any) -> Any:
        array = isinstance(result, np.ndarray)
        self.log.append((name, result.dtype.str, result.shape) if array else (name, int(result)))
        if not array and result in (PREFILL, DECODE):
            self.log.append(("step", self.scheduler.step().kind, self.scheduler.step().step_id))
        return result


def add(world: World, rank: int, request: int, length: int, max_tokens: int) -> None:
    """A request of whatever kind the engine takes."""
    if world.constants["kEngineType"] == "COMPLETION":
        world.ranks[rank].add_prompted(request, length, max_tokens=max_tokens)
    else:
        world.ranks[rank].add(request, length, max_tokens)


def busy_group(make_world: MakeWorld, ranks: int) -> World:
    """Rank 0 decodes for long; the decode counter of the group is 1."""
    world = make_world("example", ranks=ranks)
    world.ranks[0].add(1, 4, 80)
    world.until(DECODE)
    return world


@pytest.mark.parametrize("engine", ["example", "padded", "prompt_cp", "completion"])
@pytest.mark.parametrize("deferred", [False, True])
def test_i01_every_rank_makes_the_same_exchanges_in_the_same_order(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    world = make_world(engine, ranks=3, deferred=deferred)
    recorders = [Recorder(rank.scheduler) for rank in world.ranks]
    for rank, recorder in zip(world.ranks, recorders, strict=True):
        rank.scheduler = recorder
    for request in range(1, 9):
        add(world, 0 if request < 7 else 2, request, 1 + 3 * request, 2 + request)  # rank 1 never has any
        world.step()
    world.drain()
    assert recorders[0].log == recorders[1].log == recorders[2].log
    assert len({entry[0] for entry in recorders[0].log}) >= 3


def test_i02_step_type_is_equal_on_all_ranks(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=3)
    world.ranks[1].add(1, 90, 5)
    assert [world.step() for _ in range(3)] == [PREFILL, PREFILL, DECODE]
    world.drain()


@pytest.mark.parametrize("engine", ["prompt_cp", "completion"])
def test_i02_ranks_of_an_engine_that_does_not_vote_follow_the_record(make_world: MakeWorld, engine: str) -> None:
    world = make_world(engine, ranks=3)
    work = PREFILL if engine == "prompt_cp" else DECODE
    assert world.step() == IDLE, "the first exchange"
    add(world, 2, 1, 9, 3)
    actions = [world.step() for _ in range(5)]
    assert work in actions
    assert set(actions) <= {IDLE, work, DONE}
    world.drain()


@pytest.mark.parametrize("ranks", [1, 2])
def test_i03_an_all_point_prefills_when_every_rank_wants(make_world: MakeWorld, ranks: int) -> None:
    world = busy_group(make_world, ranks)
    for number, rank in enumerate(world.ranks):
        rank.add(10 + number, 4, 3)
    assert world.until(PREFILL) == 7 - 1


def at_point(make_world: MakeWorld, steps: int, wanting: int) -> tuple[World, list[Any]]:
    """Two ranks, ``wanting`` of them with a prompt, after ``steps`` decode steps: at a point, round 1 not resolved."""
    world = busy_group(make_world, 2)
    while world.group.decode_steps < steps:
        if world.group.decode_steps == steps - 1:
            for number, rank in enumerate(world.ranks[2 - wanting :]):
                rank.add(10 + number, 4, 3)
        world.step()
    schedulers = [rank.scheduler for rank in world.ranks]
    assert [s.begin_step(world.flags) for s in schedulers] == [VOTE] * 2
    return world, schedulers


def resolve(schedulers: list[Any]) -> list[int]:
    reduced = np.max([s.vote() for s in schedulers], axis=0)
    return [s.resolve_vote(reduced) for s in schedulers]


@pytest.mark.parametrize(("steps", "point", "wanting", "go"), [(7, ALL, 1, 0), (7, ALL, 2, 1), (10, ANY, 1, 1)])
def test_i03_i04_the_first_round_is_a_minimum_at_all_and_a_maximum_at_any(
    make_world: MakeWorld, steps: int, point: int, wanting: int, go: int
) -> None:
    _, schedulers = at_point(make_world, steps, wanting)
    assert resolve(schedulers) == ([VOTE] * 2 if go else [DECODE] * 2)
    decisions = [s.decision() for s in schedulers]
    assert {(d.point, d.go, d.decode_counter) for d in decisions} == {(point, go, steps)}
    assert [d.want for d in decisions] == [int(wanting == 2), 1]


@pytest.mark.parametrize("steps", [7, 10])
@pytest.mark.parametrize("vanished", [1, 2])
def test_i03_i04_a_prefill_runs_if_at_least_one_rank_scheduled_a_token(
    make_world: MakeWorld, steps: int, vanished: int
) -> None:
    # The prompts of one rank, or of both, are aborted between their vote and the scheduling.
    world, schedulers = at_point(make_world, steps, 2)
    votes = np.max([s.vote() for s in schedulers], axis=0)
    for number in range(vanished):
        schedulers[number].abort(10 + number)
    assert [s.resolve_vote(votes) for s in schedulers] == [VOTE] * 2
    assert resolve(schedulers) == ([PREFILL] * 2 if vanished == 1 else [DECODE] * 2)
    assert [s.decision().scheduled for s in schedulers] == ([0, 1] if vanished == 1 else [0, 0])
    for rank in world.ranks:
        rank.execute(world.rng)
        rank.commit_oldest()


def test_i04_one_rank_is_enough_at_an_any_point_only(make_world: MakeWorld) -> None:
    world = busy_group(make_world, 2)
    world.ranks[1].add(2, 4, 3)
    assert world.until(PREFILL) == 10 - 1


def test_i05_a_vote_is_resolved_once_before_the_next_step(make_world: MakeWorld) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    assert scheduler.begin_step(None) == VOTE
    with pytest.raises(ValueError, match="not resolved"):
        scheduler.begin_step(None)
    assert scheduler.resolve_vote(scheduler.vote()) == DONE
    with pytest.raises(ValueError, match="no vote"):
        scheduler.resolve_vote(np.zeros(6, np.int32))
    with pytest.raises(ValueError, match="none"):
        scheduler.vote()


def test_i05_no_two_votes_without_a_step_between_them(make_world: MakeWorld) -> None:
    # Rank 1 wants for ever and rank 0 never does: each vote that fails is followed by a decode step.
    world = busy_group(make_world, 2)
    world.ranks[1].add(2, 60, 1)
    kinds = []
    for _ in range(30):
        before = world.ranks[0].scheduler.stats()["votes"]
        kinds.append((world.step(), world.ranks[0].scheduler.stats()["votes"] - before))
    assert {votes for _, votes in kinds} == {0, 1, 2}
    assert all(action in (PREFILL, DECODE) for action, _ in kinds)


def test_i06_an_admissible_head_is_prefilled_within_the_any_interval(make_world: MakeWorld) -> None:
    world = busy_group(make_world, 2)
    for request in range(2, 5):
        world.ranks[1].add(request, 4, 30)
        assert world.until(PREFILL) <= 10
    world = make_world("example", ranks=2)
    world.ranks[1].add(1, 4, 1)
    assert world.step() == PREFILL, "at once when the group is idle"


@pytest.mark.parametrize("engine", ["example", "speculative", "varlen"])
def test_i07_counters_are_equal_on_all_ranks(make_world: MakeWorld, engine: str) -> None:
    # The ranks' loads differ as much as they can.
    world = make_world(engine, ranks=3)
    for request in range(1, 25):
        world.ranks[request % 2].add(request, 1 + request, request)
    highest = 0
    for _ in range(80):
        expected = world.group.decode_steps
        world.step()
        counters = [rank.scheduler.decision().decode_counter for rank in world.ranks]
        assert counters == [expected] * 3
        highest = max(highest, expected)
    assert highest > 3
    world.drain()


def test_i08_a_rank_without_work_joins_with_an_empty_or_a_padded_step(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=2)
    world.ranks[0].add(1, 4, 5)
    assert world.step() == PREFILL
    step = world.ranks[1].scheduler.step()
    assert (step.kind, step.num_rows, step.total_q, len(step.input_ids)) == (1, 0, 0, 0)
    del step
    world.until(DECODE)
    step = world.ranks[1].scheduler.step()
    assert (step.kind, step.num_rows, step.total_q, step.graph) == (2, 0, 0, 1)
    assert step.q_len.tolist() == [1] + [0] * 7


@pytest.mark.parametrize(("engine", "kind", "graph"), [("prompt_cp", 1, 0), ("completion", 2, 1), ("padded", 2, 2)])
def test_i08_in_every_type_of_engine(make_world: MakeWorld, engine: str, kind: int, graph: int) -> None:
    world = make_world(engine, ranks=2)
    add(world, 0, 1, 4, 5)
    world.until(PREFILL if kind == 1 else DECODE)
    if engine == "padded":
        world.step()  # the first record asked for the graph of one sequence with a draft
    step = world.ranks[1].scheduler.step()
    assert (step.kind, step.num_rows, step.total_q, step.graph) == (kind, 0, 0, graph)
    del step
    world.drain()


@pytest.mark.parametrize("engine", ["example", "speculative"])
@pytest.mark.parametrize("deferred", [False, True])
def test_i21_at_most_two_dummies_run_while_a_rank_has_an_admissible_prompt(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    most = 0
    for length in range(2, 25):
        world = make_world(engine, ranks=2, deferred=deferred)
        world.ranks[0].add(1, 4, length)
        world.until(DECODE)
        in_a_row = 0
        while not world.ranks[0].requests[1].reason or in_a_row:
            if world.ranks[0].requests[1].reason and 2 not in world.ranks[1].requests:
                world.ranks[1].add(2, 4, 1)
            action = world.step()
            dummy = action == DECODE and all(rank.scheduler.step().num_rows == 0 for rank in world.ranks)
            in_a_row = in_a_row + 1 if dummy else 0
            most = max(most, in_a_row)
            if action == PREFILL:
                break
        world.drain()
    assert most <= 2
    assert most == 2 * deferred, "the bound is reached, and only behind a frame in flight"
