"""Bad requests and ids: each call refuses them with the values, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusal import refused
from scheduler_world import ABORT, DECODE, IDLE, PREFILL, Rank, World

MakeWorld = Callable[..., World]
NONE = np.array([], np.int32)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def prompt(length: int) -> Any:
    return np.arange(length, dtype=np.int32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, prompt(0), 5, 0, NONE), "request 1: the prompt has no tokens"),
        ((2, prompt(96), 5, 0, NONE), "request 2: a prompt of 96 tokens .* max_model_len 96"),
        ((2, prompt(500), 5, 0, NONE), "request 2: a prompt of 500 tokens .* max_model_len 96"),
        ((3, prompt(5), 0, 0, NONE), "request 3: max_tokens is 0, below 1"),
        ((3, prompt(5), -7, 0, NONE), "request 3: max_tokens is -7, below 1"),
        ((4, prompt(5), 5, 6, NONE), r"request 4: min_tokens is 6, not in 0\.\.5"),
        ((4, prompt(5), 5, -1, NONE), r"request 4: min_tokens is -1, not in 0\.\.5"),
        ((5, prompt(5) - 3, 5, 0, NONE), "request 5: prompt token 0 is -3, below 0"),
        ((5, ints(1, 2, -9), 5, 0, NONE), "request 5: prompt token 2 is -9, below 0"),
        ((9, prompt(5), 5, 0, NONE), "request 9: a request of this id has not ended"),
        ((6, prompt(4).reshape(2, 2), 5, 0, NONE), "prompt must have one dimension"),
        ((6, prompt(4), 5, 0, ints(1, 2).reshape(1, 2)), "end_ids must have one dimension"),
        ((7, prompt(9), 5, 0, NONE, ints(0)), r"request 7: checkpoint 0 does not ascend within 1\.\.8"),
        ((7, prompt(9), 5, 0, NONE, ints(9)), r"request 7: checkpoint 9 does not ascend within 1\.\.8"),
        ((7, prompt(9), 5, 0, NONE, ints(3, 3)), r"request 7: checkpoint 3 does not ascend within 1\.\.8"),
        ((7, prompt(9), 5, 0, NONE, ints(5, 2)), r"request 7: checkpoint 2 does not ascend within 1\.\.8"),
        ((7, prompt(9), 5, 0, NONE, ints(-4)), r"request 7: checkpoint -4 does not ascend within 1\.\.8"),
        ((7, prompt(9), 5, 0, NONE, ints(1, 2).reshape(1, 2)), "checkpoints must have one dimension"),
    ],
)
def test_a_prompt_that_cannot_run(make_world: MakeWorld, arguments: tuple[Any, ...], words: str) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    scheduler.add(9, prompt(5), 5, 0, NONE)
    with refused(scheduler, words):
        scheduler.add(*arguments)


# The example takes 64 tokens a step and cp 1; `speculative` takes 22 and cp 2, so that chunks are multiples of 4, spans
# fewer than 3 tokens apart count as one and a span has 6 tokens fewer.
@pytest.mark.parametrize(
    ("engine", "spans", "words"),
    [
        ("example", [(5, 5)], r"the image at 5 \.\. 5 is empty, out of order or outside the prompt of 60 tokens"),
        ("example", [(5, 3)], r"the image at 5 \.\. 3 is empty"),
        ("example", [(-1, 3)], r"the image at -1 \.\. 3 is empty, out of order or outside"),
        ("example", [(50, 61)], r"the image at 50 \.\. 61 is empty, out of order or outside"),
        ("example", [(0, 9), (8, 12)], r"the image at 8 \.\. 12 is empty, out of order"),
        ("example", [(20, 30), (0, 9)], r"the image at 0 \.\. 9 is empty, out of order"),
        ("speculative", [(0, 17)], r"the image at 0 \.\. 17 cannot be kept whole in a step of 22 tokens"),
        ("speculative", [(2, 10), (12, 19)], r"the image at 2 \.\. 19 cannot be kept whole in a step of 22 tokens"),
        ("speculative", [(2, 9), (9, 15), (15, 22)], r"the image at 2 \.\. 22 cannot be kept whole"),
        ("prompt_cp", [(7, 26)], r"the image at 7 \.\. 26 cannot be kept whole in a step of 24 tokens"),
    ],
)
def test_images_that_a_cut_could_not_avoid(
    make_world: MakeWorld, engine: str, spans: list[tuple[int, int]], words: str
) -> None:
    scheduler = make_world(engine).ranks[0].scheduler
    with refused(scheduler, "request 4: " + words):
        scheduler.add(4, prompt(60), 5, 0, NONE, NONE, np.array(spans, np.int32))


def test_images_at_the_limit_are_taken(make_world: MakeWorld) -> None:
    for engine, spans in (
        ("speculative", [(0, 16)]),
        ("speculative", [(2, 10), (13, 19)]),
        ("prompt_cp", [(7, 25)]),
        ("example", [(0, 60)]),
    ):
        make_world(engine).ranks[0].add(1, 60, 1, spans=spans)


def test_an_image_longer_than_a_step_without_context_parallelism(make_world: MakeWorld) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    scheduler.add(1, prompt(90), 1, 0, NONE, NONE, np.array([(1, 65)], np.int32))
    with refused(scheduler, r"request 2: the image at 1 \.\. 66 cannot be kept whole in a step of 64 tokens"):
        scheduler.add(2, prompt(90), 1, 0, NONE, NONE, np.array([(1, 66)], np.int32))


def test_image_spans_have_a_start_and_an_end(make_world: MakeWorld) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    with refused(scheduler, "image_spans must have two columns: start and end"):
        scheduler.add(1, prompt(9), 5, 0, NONE, NONE, np.zeros((2, 3), np.int32))
    with refused(scheduler, "image_spans must have two dimensions"):
        scheduler.add(1, prompt(9), 5, 0, NONE, NONE, ints(1, 2))


@pytest.mark.parametrize("engine", ["example", "completion"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, prompt(0), 0, 5, 0, NONE), "request 1: the sequence has no tokens"),
        ((1, prompt(200), 4, 5, 0, NONE), "request 1: a sequence of 200 tokens .* max_model_len (96|48)"),
        ((2, ints(1, 2, -4), 2, 5, 0, NONE), "request 2: sequence token 2 is -4, below 0"),
        ((3, prompt(5), 5, 5, 0, NONE), "request 3: a prompt of 5 tokens among 5: the rest is its output so far"),
        ((3, prompt(5), 0, 5, 0, NONE), "request 3: a prompt of 0 tokens among 5"),
        ((3, prompt(5), -1, 5, 0, NONE), "request 3: a prompt of -1 tokens among 5"),
        ((3, prompt(5), 9, 5, 0, NONE), "request 3: a prompt of 9 tokens among 5"),
        ((4, prompt(5), 4, 0, 0, NONE), "request 4: max_tokens is 0, below 1"),
        ((4, prompt(5), 4, 5, 6, NONE), r"request 4: min_tokens is 6, not in 0\.\.5"),
        ((5, prompt(5), 3, 2, 0, NONE), "request 5: it has 2 output tokens already, and max_tokens is 2"),
        ((9, prompt(5), 4, 5, 0, NONE), "request 9: a request of this id has not ended"),
        ((6, prompt(4).reshape(2, 2), 2, 5, 0, NONE), "tokens must have one dimension"),
    ],
)
def test_a_request_computed_elsewhere_that_cannot_run(
    make_world: MakeWorld, engine: str, arguments: tuple[Any, ...], words: str
) -> None:
    scheduler = make_world(engine).ranks[0].scheduler
    scheduler.add_prompted(9, prompt(5), 4, 5, 0, NONE)
    with refused(scheduler, words):
        scheduler.add_prompted(*arguments)


# Calls with the id of a request: name, arguments behind the id.
BY_ID: list[tuple[str, tuple[Any, ...]]] = [
    ("fork", (np.array([77], np.uint64),)),
    ("pause", ()),
    ("resume", ()),
    ("begin_transfer", ()),
    ("end_transfer", ()),
    ("blocks", ()),
    ("slot", ()),
    ("abort", ()),
    ("finish", (3,)),
]


@pytest.mark.parametrize(("call", "arguments"), BY_ID)
def test_an_id_that_never_came_or_whose_end_was_reported(
    make_world: MakeWorld, call: str, arguments: tuple[Any, ...]
) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    scheduler.add(1, prompt(4), 5, 0, NONE)
    scheduler.abort(1)
    assert scheduler.outcomes().ids.tolist() == [1]
    name = "finish" if call == "abort" else call
    for request in (1, 12345):
        with refused(scheduler, f"{name} of request {request}: it was never added, or its end was reported"):
            getattr(scheduler, call)(request, *arguments)


@pytest.mark.parametrize("call", ["begin_transfer", "end_transfer", "blocks", "slot"])
@pytest.mark.parametrize("kind", ["prompt", "prompted"])
def test_a_request_that_waits_has_no_cache(make_world: MakeWorld, call: str, kind: str) -> None:
    rank = make_world("example").ranks[0]
    rank.add(1, 4, 5) if kind == "prompt" else rank.add_prompted(1, 4)
    with refused(rank.scheduler, f"{call} of request 1: it waits and has no blocks"):
        getattr(rank.scheduler, call)(1)


def test_a_transfer_is_opened_once_and_closed_once(make_world: MakeWorld) -> None:
    world, rank = decoding(make_world)
    with refused(rank.scheduler, "end_transfer of request 1: none is open"):
        rank.scheduler.end_transfer(1)
    rank.scheduler.begin_transfer(1)
    with refused(rank.scheduler, "begin_transfer of request 1: one is open already"):
        rank.scheduler.begin_transfer(1)
    rank.finish(1, ABORT)
    for call in ("begin_transfer", "blocks", "slot", "pause"):
        with refused(rank.scheduler, f"{call} of request 1: it was never added, or its end was reported"):
            getattr(rank.scheduler, call)(1)
    for again in (lambda: rank.add(1, 4, 5), lambda: rank.add_prompted(1, 4)):
        with refused(rank.scheduler, "request 1: blocks of an earlier request of this id are still in a transfer"):
            again()
    rank.scheduler.end_transfer(1)
    with refused(rank.scheduler, "end_transfer of request 1: it was never added"):
        rank.scheduler.end_transfer(1)
    world.drain()
    rank.add(1, 4, 5)


def decoding(make_world: MakeWorld, engine: str = "example") -> tuple[World, Rank]:
    """Request 1 has decoded."""
    world = make_world(engine)
    world.ranks[0].add(1, 5, 30)
    world.until(DECODE)
    return world, world.ranks[0]


@pytest.mark.parametrize(
    ("children", "words"),
    [
        ([1], "fork of request 1: id 1 is taken"),
        ([2], "fork of request 1: id 2 is taken"),
        ([3], "fork of request 1: id 3 is taken"),
        ([7, 7], "fork of request 1: id 7 is taken"),
        ([7, 8, 7], "fork of request 1: id 7 is taken"),
        ([7, 8, 9, 10], "fork of request 1: 4 branches, but places for 3"),
        ([[7, 8]], "children must have one dimension"),
    ],
)
def test_branches_that_cannot_be(make_world: MakeWorld, children: list[Any], words: str) -> None:
    world, rank = decoding(make_world)
    rank.add(2, 3, 5)  # waits
    rank.add(3, 3, 5)
    while 3 not in rank.last_decode:
        world.step()
    rank.scheduler.begin_transfer(3)
    rank.finish(3, ABORT)  # drains
    while not rank.requests[2].reason:
        world.step()
    rank.add(2, 3, 5)
    with refused(rank.scheduler, words):
        rank.scheduler.fork(1, np.array(children, np.uint64))


def test_a_parent_that_cannot_be_forked_now(make_world: MakeWorld) -> None:
    world = make_world("example", loads=False)
    rank = world.ranks[0]
    rank.add(1, 90, 30)
    child = np.array([7], np.uint64)
    with refused(rank.scheduler, "fork of request 1: its prompt is not computed yet"):
        rank.scheduler.fork(1, child)
    assert world.step() == PREFILL  # a first chunk
    with refused(rank.scheduler, "fork of request 1: its prompt is not computed yet"):
        rank.scheduler.fork(1, child)
    world.until(DECODE)
    assert world.step(commits=False) == DECODE
    step_id = rank.uncommitted[0][0]
    with refused(rank.scheduler, f"fork of request 1: commit step {step_id} first"):
        rank.scheduler.fork(1, child)
    rank.commit_oldest()
    rank.add_prompted(2, 4)
    world.step()
    assert rank.loads == [2]
    with refused(rank.scheduler, "fork of request 2: its prompt is not computed yet"):
        rank.scheduler.fork(2, child)


@pytest.mark.parametrize("reason", [0, 6, -1, 100])
def test_a_reason_that_is_none(make_world: MakeWorld, reason: int) -> None:
    _, rank = decoding(make_world)
    with refused(rank.scheduler, rf"finish of request 1: reason {reason} is not in 1\.\.5"):
        rank.scheduler.finish(1, reason)


def test_calls_of_the_other_engine_type(make_world: MakeWorld) -> None:
    completion, prompts = make_world("completion").ranks[0], make_world("prompt_cp").ranks[0]
    with refused(completion.scheduler, "add: a COMPLETION engine prefills nothing; use add_prompted"):
        completion.scheduler.add(1, prompt(5), 5, 0, NONE)
    with refused(prompts.scheduler, "add_prompted: a PROMPT engine decodes nothing; use add"):
        prompts.scheduler.add_prompted(1, prompt(5), 4, 5, 0, NONE)
    prompts.add(1, 5, 1)
    with refused(prompts.scheduler, "fork: a PROMPT engine decodes nothing, so it has no branches"):
        prompts.scheduler.fork(1, np.array([2], np.uint64))
    with refused(prompts.scheduler, "set_cost_curve: a PROMPT engine decodes nothing"):
        prompts.scheduler.set_cost_curve(np.array([1.0]))
    with refused(prompts.scheduler, "observe: a PROMPT engine decodes nothing"):
        prompts.scheduler.observe(1, 1, 1.0, 0.0)
    with refused(prompts.scheduler, "split: a PROMPT engine decodes nothing"):
        prompts.scheduler.split(ints(1), np.zeros((1, 5), np.uint16), 2)
    for rank in (completion, prompts):
        assert rank.scheduler.begin_step(None) == IDLE
        with refused(rank.scheduler, "vote: this step has none"):
            rank.scheduler.vote()
        with refused(rank.scheduler, "resolve_vote: this step has no vote"):
            rank.scheduler.resolve_vote(np.zeros(6, np.int32))
