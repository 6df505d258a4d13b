"""Bad calls of the step protocol: steps, records, votes, results and cost curves. Nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusal import refused
from scheduler_world import DECODE, PREFILL, VOTE, World

MakeWorld = Callable[..., World]


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def uncommitted(make_world: MakeWorld, kind: int) -> tuple[Any, list[Any]]:
    """A scheduler with a prefill step of a cut and a whole prompt, or a decode step of two rows; good results."""
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 8, 40)
    rank.add(2, 30, 40)
    if kind == DECODE:
        while len(rank.last_decode) < 2:
            world.step()
    assert world.step(commits=False) == kind
    return rank.scheduler, list(rank.uncommitted[0])


def changed(array: Any, index: Any, value: int) -> Any:
    result = array.copy()
    result[index] = value
    return result


@pytest.mark.parametrize("kind", [PREFILL, DECODE])
def test_results_of_the_wrong_step(make_world: MakeWorld, kind: int) -> None:
    scheduler, good = uncommitted(make_world, kind)
    for step_id in (good[0] - 1, good[0] + 1, 0, 2**64 - 1):
        with refused(scheduler, f"commit of step {step_id}: step {good[0]} comes first"):
            scheduler.commit(step_id, *good[1:])
    scheduler.commit(*good)
    with refused(scheduler, f"commit of step {good[0]}: no step waits for results"):
        scheduler.commit(*good)


def test_results_before_any_step(make_world: MakeWorld) -> None:
    scheduler = make_world("speculative").ranks[0].scheduler
    with refused(scheduler, "commit of step 0: no step waits for results"):
        scheduler.commit(0, np.zeros((0, 6), np.int32), ints(), np.zeros((0, 5), np.uint16))


@pytest.mark.parametrize(
    ("kind", "row", "count", "words"),
    [
        (PREFILL, 0, 0, r"row 0 \(request 1\): count 0 is not in 1\.\.1"),
        (PREFILL, 0, 2, r"row 0 \(request 1\): count 2 is not in 1\.\.1"),
        (PREFILL, 1, 1, r"row 1 \(request 2\): count 1 is not in 0\.\.0"),
        (PREFILL, 1, -1, r"row 1 \(request 2\): count -1 is not in 0\.\.0"),
        (DECODE, 0, 0, r"row 0 \(request \d\): count 0 is not in 1\.\.6"),
        (DECODE, 1, 7, r"row 1 \(request \d\): count 7 is not in 1\.\.6"),
        (DECODE, 1, -3, r"row 1 \(request \d\): count -3 is not in 1\.\.6"),
        (DECODE, 0, 2**31 - 1, r"row 0 \(request \d\): count 2147483647 is not in 1\.\.6"),
    ],
)
def test_counts_that_do_not_add_up(make_world: MakeWorld, kind: int, row: int, count: int, words: str) -> None:
    scheduler, (step_id, tokens, counts, confidences) = uncommitted(make_world, kind)
    with refused(scheduler, words):
        scheduler.commit(step_id, tokens, changed(counts, row, count), confidences)
    scheduler.commit(step_id, tokens, counts, confidences)


@pytest.mark.parametrize("kind", [PREFILL, DECODE])
def test_negative_tokens(make_world: MakeWorld, kind: int) -> None:
    scheduler, (step_id, tokens, counts, confidences) = uncommitted(make_world, kind)
    last = int(counts[0]) - 1
    with refused(scheduler, "row 0: token id -7 is negative"):
        scheduler.commit(step_id, changed(tokens, (0, last), -7), counts, confidences)
    if kind == DECODE:  # in the last row: the rows before it are not taken either
        with refused(scheduler, "row 1: token id -1 is negative"):
            scheduler.commit(step_id, changed(tokens, (1, 0), -1), counts, confidences)


@pytest.mark.parametrize("kind", [PREFILL, DECODE])
def test_results_of_the_wrong_shape(make_world: MakeWorld, kind: int) -> None:
    scheduler, (step_id, tokens, counts, confidences) = uncommitted(make_world, kind)
    good = [tokens, counts, confidences]
    for place, wrong, words in [
        (0, tokens[:, :5], r"tokens has shape \[2, 5\], not \[2, 6\]"),
        (0, tokens[:1], r"tokens has shape \[1, 6\], not \[2, 6\]"),
        (0, np.concatenate([tokens, tokens]), r"tokens has shape \[4, 6\], not \[2, 6\]"),
        (0, tokens[0], "tokens must have two dimensions"),
        (1, counts[:1], r"counts has shape \[1, 1\], not \[2, 1\]"),
        (1, counts.reshape(2, 1), "counts must have one dimension"),
        (2, confidences[:, :4], r"confidences has shape \[2, 4\], not \[2, 5\]"),
        (2, confidences[:0], r"confidences has shape \[0, 5\], not \[2, 5\]"),
    ]:
        with refused(scheduler, words):
            scheduler.commit(step_id, *good[:place], wrong, *good[place + 1 :])
    with pytest.raises(TypeError):
        scheduler.commit(step_id, tokens.astype(np.float64), counts, confidences)
    scheduler.commit(step_id, *good)


def test_a_step_before_its_time(make_world: MakeWorld) -> None:
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 5, 50)
    assert world.step(commits=False) == PREFILL
    with refused(rank.scheduler, "begin_step: commit step 1 first"):
        rank.scheduler.begin_step(world.flags)
    rank.commit_oldest()
    world.until(DECODE)
    rank.add(2, 5, 50)
    world.step(commits=False)
    world.step(commits=False)
    assert rank.scheduler.stats()["uncommitted_steps"] == 2
    oldest = rank.uncommitted[0][0]
    with refused(rank.scheduler, f"begin_step: commit step {oldest} first"):
        rank.scheduler.begin_step(world.flags)


def test_a_vote_that_is_not_resolved_or_not_there(make_world: MakeWorld) -> None:
    world = make_world("speculative")
    scheduler = world.ranks[0].scheduler
    for call in (scheduler.vote, lambda: scheduler.resolve_vote(ints(0, 0, 0, 0, 0, 0))):
        with refused(scheduler, "vote: this step has n"):
            call()
    world.ranks[0].add(1, 5, 50)
    assert scheduler.begin_step(None) == VOTE
    with refused(scheduler, "begin_step: the vote of this step is not resolved"):
        scheduler.begin_step(None)
    with refused(scheduler, "resolve_vote: element 0 is 0, below this rank's own 1; reduce by MAX"):
        scheduler.resolve_vote(np.zeros(6, np.int32))
    with refused(scheduler, "resolve_vote: element 2 is -1, below this rank's own 1; reduce by MAX"):
        scheduler.resolve_vote(ints(1, 1, -1, 1, 1, 0))
    for wrong in (np.ones(5, np.int32), np.ones((1, 6), np.int32), np.ones(7, np.int32)):
        with refused(scheduler, r"reduced must be int32\[6\]"):
            scheduler.resolve_vote(wrong)
    assert scheduler.resolve_vote(scheduler.vote()) == VOTE
    with refused(scheduler, "resolve_vote: element 0 is 0, below this rank's own 1"):
        scheduler.resolve_vote(np.zeros(6, np.int32))
    assert scheduler.resolve_vote(scheduler.vote()) == PREFILL
    with refused(scheduler, "resolve_vote: this step has no vote"):
        scheduler.resolve_vote(ints(1, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("engine", ["speculative", "padded", "completion", "prompt_cp"])
def test_a_record_of_the_wrong_shape(make_world: MakeWorld, engine: str) -> None:
    scheduler = make_world(engine).ranks[0].scheduler
    for wrong in (np.zeros(5, np.int32), np.zeros((1, 6), np.int32), np.zeros(0, np.int32)):
        with refused(scheduler, r"flags must be int32\[6\]"):
            scheduler.begin_step(wrong)


@pytest.mark.parametrize("size", [3, 0, -1, 9, 1000])
def test_an_agreed_graph_that_is_none(make_world: MakeWorld, size: int) -> None:
    world = make_world("padded")  # graphs of 1, 2, 4 and 8 tokens
    world.ranks[0].add(1, 5, 9)
    world.until(DECODE)
    flags = changed(world.flags, 5, size)
    with refused(world.ranks[0].scheduler, f"begin_step: no graph has the agreed size {size}"):
        world.ranks[0].scheduler.begin_step(flags)
    world.drain()


def test_a_cost_curve_is_needed_before_the_first_step(engines: Any) -> None:
    scheduler = engines["varlen"].Scheduler()
    with refused(scheduler, "begin_step: no cost curve; call set_cost_curve"):
        scheduler.begin_step(None)


GOOD = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]  # one for each of the sizes 1, 2, 4, 8, 16, 24, 32, 36


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (GOOD[:-1], "cost curve: 7 durations for 8 graph sizes"),
        ([*GOOD, 2.0], "cost curve: 9 durations for 8 graph sizes"),
        ([], "cost curve: 0 durations for 8 graph sizes"),
        ([*GOOD[:-1], float("nan")], r"cost curve: -?nan ms at graph size 36; a duration lies between 1e-6 and 1e9 ms"),
        ([*GOOD[:-1], float("inf")], "cost curve: inf ms at graph size 36; a duration lies between"),
        ([0.0, *GOOD[1:]], "cost curve: 0.000000 ms at graph size 1; a duration lies between"),
        ([-2.0, *GOOD[1:]], "cost curve: -2.000000 ms at graph size 1; a duration lies between"),
        ([1.0, 1.2, 1.1, *GOOD[3:]], "it falls from 1.200000 ms at graph size 2 to 1.100000 ms at graph size 4"),
        ([1.0] * 8, "it is flat: from 1.000000 ms at graph size 1 to 1.000000 ms at graph size 36 it rises by under 5"),
        ([1.0] * 7 + [1.04], "it is flat: from 1.000000 ms at graph size 1 to 1.040000 ms at graph size 36"),
    ],
)  # fmt: skip
def test_cost_curves_that_say_nothing(engines: Any, curve: list[float], words: str) -> None:
    scheduler = engines["varlen"].Scheduler()
    with refused(scheduler, words):
        scheduler.set_cost_curve(np.array(curve))
    with refused(scheduler, "no cost curve"):
        scheduler.begin_step(None)
    scheduler.set_cost_curve(np.array(GOOD))
    with refused(scheduler, words):
        scheduler.set_cost_curve(np.array(curve))
    assert scheduler.begin_step(None) == VOTE, "the good curve is still there"


def test_a_cost_curve_has_one_dimension(engines: Any) -> None:
    scheduler = engines["varlen"].Scheduler()
    with refused(scheduler, "milliseconds must have one dimension"):
        scheduler.set_cost_curve(np.array([GOOD]))


def test_an_engine_that_verifies_all_drafts_takes_no_curve(make_world: MakeWorld) -> None:
    scheduler = make_world("speculative").ranks[0].scheduler
    with refused(scheduler, "cost curve: this engine always verifies all drafts and takes none"):
        scheduler.set_cost_curve(np.array(GOOD))
    with refused(scheduler, "split: this engine always verifies all drafts"):
        scheduler.split(ints(1), np.zeros((1, 5), np.uint16), 2)


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ((3, 1, 1.0, 0.1), "observe: no graph has size 3"),
        ((0, 1, 1.0, 0.1), "observe: no graph has size 0"),
        ((99, 1, 1.0, 0.1), "observe: no graph has size 99"),
        ((4, 5, 1.0, 0.1), "observe: 5 rows in a graph of size 4"),
        ((36, 7, 1.0, 0.1), "observe: 7 rows in a graph of size 36"),
        ((4, -1, 1.0, 0.1), "observe: -1 rows in a graph of size 4"),
        (
            (4, 1, float("nan"), 0.1),
            "observe: forward -?nan ms, sampler 0.100000 ms; a duration lies between 0",
        ),
        ((4, 1, -1.0, 0.1), "observe: forward -1.000000 ms, sampler 0.100000 ms"),
        ((4, 1, 1.0, float("inf")), "observe: forward 1.000000 ms, sampler inf ms"),
    ],
)
def test_costs_that_no_step_has(make_world: MakeWorld, observation: tuple[Any, ...], words: str) -> None:
    scheduler = make_world("varlen").ranks[0].scheduler
    with refused(scheduler, words):
        scheduler.observe(*observation)


@pytest.mark.parametrize(
    ("caps", "shape", "total", "words"),
    [
        ([5, 5], (2, 5), 1, "split: a total of 1 for 2 rows with 10 drafts"),
        ([5, 5], (2, 5), 13, "split: a total of 13 for 2 rows with 10 drafts"),
        ([5, 6], (2, 5), 4, "split: a cap of 6, but a row has 0 to 5 drafts"),
        ([-1, 5], (2, 5), 4, "split: a cap of -1, but a row has 0 to 5 drafts"),
        ([5, 5], (3, 5), 4, "split: 15 confidences for 2 rows of 5 drafts"),
        ([5, 5], (2, 4), 4, "split: 4 confidences a row, not 5"),
        ([5] * 7, (7, 5), 9, "split: 7 rows, but the engine holds 6"),
        ([5], (5,), 2, "confidences must have two dimensions"),
        ([[5]], (1, 5), 2, "caps must have one dimension"),
    ],
)
def test_splits_that_cannot_be(
    make_world: MakeWorld, caps: list[Any], shape: tuple[int, ...], total: int, words: str
) -> None:
    scheduler = make_world("varlen").ranks[0].scheduler
    with refused(scheduler, words):
        scheduler.split(np.array(caps, np.int32), np.zeros(shape, np.uint16), total)
