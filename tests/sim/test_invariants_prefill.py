"""Invariants I19 and I22: the limits of a prefill step, where prompts are cut, and how many sequences there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scheduler_world import ABORT, DECODE, DONE, IDLE, PREFILL, World

MakeWorld = Callable[..., World]


@pytest.mark.parametrize("cut", [1, 6, 7, 50, 64])
def test_i19_a_prompt_is_cut_to_the_budget_and_nobody_joins_after_the_cut(make_world: MakeWorld, cut: int) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    if cut < 64:
        rank.add(1, 64 - cut, 1)
    rank.add(2, 80, 2)
    rank.add(3, 1, 1)
    assert world.step() == PREFILL
    step = rank.scheduler.step()
    assert step.ids[-1] == 2
    assert (step.q_len[-1], step.k_len[-1], step.samples[-1]) == (cut, cut, 0)
    assert step.total_q == 64
    del step
    assert world.step() == PREFILL
    step = rank.scheduler.step()
    if cut == 64 or 80 - cut <= 64:
        assert (step.q_len[0], step.k_len[0], step.samples[0]) == (80 - cut, 80, 1)
        assert step.history[0].tolist() == [rank.prompt_token(2, cut + i) for i in (-3, -2, -1)]
    del step
    world.drain()


def test_i19_context_parallel_chunks_are_even_except_the_last(make_world: MakeWorld) -> None:
    world = make_world("speculative")  # cp 2, 22 tokens a step
    rank = world.ranks[0]
    rank.add(1, 47, 1)
    rank.add(2, 2, 1)
    chunks = []
    while world.step() == PREFILL:
        chunks.append(rank.scheduler.step().q_len.tolist())
    assert chunks == [[20], [20], [7, 2]], "two tokens are left beside each cut chunk, and nobody joins"


def test_i19_the_sum_of_k_lengths_is_a_limit(make_world: MakeWorld) -> None:
    world = make_world("example")  # 128 in all
    rank = world.ranks[0]
    rank.add(1, 94, 1)
    rank.add(2, 34, 1)
    rank.add(3, 1, 1)
    assert world.step() == PREFILL
    assert world.step() == PREFILL
    assert rank.scheduler.step().k_len.tolist() == [94, 34]


def test_i19_the_number_of_prompts_is_a_limit(make_world: MakeWorld) -> None:
    world = make_world("example")  # 3 a step
    rank = world.ranks[0]
    for request in range(1, 5):
        rank.add(request, 2, 1)
    assert world.step() == PREFILL
    assert rank.scheduler.step().ids.tolist() == [1, 2, 3]


def chunks_of(world: World) -> list[int]:
    """The ends of the chunks of request 1."""
    ends = []
    while world.step() == PREFILL:
        ends += world.ranks[0].scheduler.step().k_len.tolist()
    world.drain()
    return ends


@pytest.mark.parametrize(
    ("checkpoints", "ends"),
    [([], [64, 80]), ([10], [10, 74, 80]), ([10, 60], [60, 80]), ([64], [64, 80]), ([65], [64, 80]), ([79], [64, 80])],
)
def test_i19_a_cut_falls_on_the_last_checkpoint_within_the_budget(
    make_world: MakeWorld, checkpoints: list[int], ends: list[int]
) -> None:
    world = make_world("example")
    world.ranks[0].add(1, 80, 1, checkpoints=checkpoints)
    assert chunks_of(world) == ends


@pytest.mark.parametrize(
    ("checkpoints", "ends"), [([20], [20, 40, 47]), ([8, 16], [16, 36, 47]), ([9], [20, 40, 47]), ([6, 8], [8, 28, 47])]
)
def test_i19_a_checkpoint_must_also_suit_context_parallelism(
    make_world: MakeWorld, checkpoints: list[int], ends: list[int]
) -> None:
    world = make_world("speculative")  # chunks of multiples of 4
    world.ranks[0].add(1, 47, 1, checkpoints=checkpoints)
    assert chunks_of(world) == ends


@pytest.mark.parametrize(
    ("engine", "length", "spans", "ends"),
    [
        ("example", 80, [(60, 70)], [60, 80]),
        ("example", 80, [(60, 64)], [64, 80]),
        ("example", 80, [(0, 64)], [64, 80]),
        ("example", 90, [(1, 65)], [1, 65, 90]),
        ("example", 90, [(30, 60), (60, 80)], [60, 90]),
        ("speculative", 47, [(14, 23)], [12, 32, 47]),
        ("speculative", 47, [(1, 17)], [20, 40, 47]),
    ],
)
def test_i19_no_cut_falls_inside_an_image(
    make_world: MakeWorld, engine: str, length: int, spans: list[tuple[int, int]], ends: list[int]
) -> None:
    world = make_world(engine)
    world.ranks[0].add(1, length, 1, spans=spans)
    assert chunks_of(world) == ends


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("size", [1, 5, 12, 16])
def test_i19_an_image_that_was_accepted_never_stops_its_prompt(make_world: MakeWorld, offset: int, size: int) -> None:
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 60, 1, spans=[(offset, offset + size), (offset + size + 4, offset + 2 * size + 4)])
    rank.add(2, 3, 1)
    while world.step() != DONE:
        step = rank.scheduler.step()
        if step.kind == 1:
            end = int(step.k_len[step.ids == 1].sum())
            for start in (offset, offset + size + 4):
                assert not start < end < start + size
        del step
    rank.check_drained()


def test_i22_sequences_never_exceed_max_num_seqs(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    for request in range(1, 12):
        rank.add(request, 1, 3 + request)
    most = 0
    while world.step() != DONE:
        stats = rank.scheduler.stats()
        most = max(most, stats["running"] + stats["prompted"] + stats["partial"])
    assert most == 4


def test_i22_branches_and_loads_take_places_and_draining_ones_give_theirs_back(make_world: MakeWorld) -> None:
    world = make_world("example", loads=False)
    rank = world.ranks[0]
    rank.add(1, 3, 60)
    world.until(DECODE)
    rank.add_prompted(2, 3)
    rank.add_prompted(3, 3)
    assert world.step() == DECODE
    assert rank.loads == [2, 3]
    assert rank.scheduler.stats()["free_places"] == 1
    with pytest.raises(ValueError, match="2 branches, but places for 1"):
        rank.fork(1, [8, 9])
    rank.fork(1, [8])
    rank.add_prompted(4, 3)
    rank.add(5, 3, 3)
    for _ in range(25):
        world.step()
    stats = rank.scheduler.stats()
    assert (stats["incoming"], stats["waiting"], stats["free_places"]) == (1, 1, 0), "no place is left"
    rank.finish(2, ABORT)
    stats = rank.scheduler.stats()
    assert (stats["draining"], stats["free_places"]) == (1, 1), "a draining sequence counts no longer"
    world.step()
    assert rank.loads == [2, 3, 4]
    assert rank.scheduler.stats()["draining"] == 1
    rank.scheduler.end_transfer(2)
    rank.loads.remove(2)
    rank.fill_loads()
    world.loads = True
    world.drain()


def test_i22_a_completion_engine_admits_as_many_as_it_has_places(make_world: MakeWorld) -> None:
    world = make_world("completion", loads=False)
    rank = world.ranks[0]
    for request in range(1, 8):
        rank.add_prompted(request, 3)
    assert world.step() == IDLE
    assert rank.loads == [1, 2, 3, 4]
    assert rank.scheduler.stats()["incoming"] == 3
    world.loads = True
    rank.fill_loads()
    world.drain()
