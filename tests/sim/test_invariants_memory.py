"""Invariants I9 to I13 and I16: blocks, slots and rings, with branches, loads and readers outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from scheduler_world import ABORT, DECODE, DONE, IDLE, Greedy, Modest, Rank, World

MakeWorld = Callable[..., World]


def running(make_world: MakeWorld, engine: str, lengths: list[int], **options: Any) -> tuple[World, Rank]:
    """A rank whose requests 1, 2, … of these prompt lengths have decoded once."""
    world = make_world(engine, **options)
    rank = world.ranks[0]
    for request, length in enumerate(lengths, 1):
        rank.add(request, length, 40)
    world.until(DECODE)
    while rank.scheduler.stats()["waiting"]:
        world.step()
    return world, rank


def unique(holders: dict[int, list[int]]) -> set[int]:
    return {block for blocks in holders.values() for block in blocks}


def test_i09_i10_i12_blocks_and_slots_add_up(make_world: MakeWorld) -> None:
    world, rank = running(make_world, "example", [5, 10, 15, 20])
    for _ in range(10):
        assert world.step() == DECODE
        step = rank.scheduler.step()
        blocks = step.block_table[step.block_table > 0]
        slots = step.slot[: step.num_rows].tolist()
        assert step.num_rows == 4
        assert len(set(blocks.tolist())) == len(blocks)
        assert len(set(slots) - {0}) == 4
        stats = rank.scheduler.stats()
        assert stats["free_blocks"] + len(blocks) == rank.constants["kNumBlocks"] - 1
        assert stats["free_slots"] + 4 == rank.constants["kNumSlots"] - 1
        del step


@pytest.mark.parametrize("engine", ["example", "speculative", "varlen", "padded", "tight", "completion"])
def test_i09_free_blocks_and_the_blocks_of_all_requests_are_all_blocks(make_world: MakeWorld, engine: str) -> None:
    world = make_world(engine)
    rank = world.ranks[0]
    for request in range(1, 7):
        if engine == "completion":
            rank.add_prompted(request, 3 * request, max_tokens=30)
        else:
            rank.add(request, 3 * request, 30)
    shared = 0
    for count in range(60):
        action = world.step()
        if count in (8, 12):
            parents = [r for r in rank.last_decode if not rank.requests[r].reason]
            if parents and rank.scheduler.stats()["free_places"]:
                rank.fork(parents[0], [10 + count])
        holders = rank.holders()
        blocks = unique(holders)
        assert 0 not in blocks
        assert max(blocks, default=0) < rank.constants["kNumBlocks"]
        pinned = set() if action in (DONE, IDLE) else set(rank.scheduler.step().clone_blocks[:, 0].tolist())
        total = rank.constants["kNumBlocks"] - 1
        assert rank.scheduler.stats()["free_blocks"] + len(blocks | pinned) == total
        shared += sum(map(len, holders.values())) - len(blocks)
    world.drain()


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_i10_a_shared_block_is_free_when_the_last_branch_has_left(
    make_world: MakeWorld, order: tuple[int, int, int]
) -> None:
    world, rank = running(make_world, "example", [17])
    rank.fork(1, [2, 3])
    before = rank.scheduler.stats()
    holders = rank.holders()
    references = Counter(block for blocks in holders.values() for block in blocks)
    assert sorted(references.values())[-2:] == [3, 3]
    assert rank.scheduler.stats()["free_blocks"] + len(references) == rank.constants["kNumBlocks"] - 1
    for request in order:
        holders.pop(request)
        rank.finish(request, ABORT)
        rank.scheduler.check_invariants()
        stats = rank.scheduler.stats()
        assert stats["free_blocks"] + len(unique(holders)) == rank.constants["kNumBlocks"] - 1
        assert stats["free_slots"] == before["free_slots"] + (not holders)
    world.drain()


@pytest.mark.parametrize("length", range(9, 18))
@pytest.mark.parametrize("deferred", [False, True])
def test_i11_a_branch_writes_to_a_block_of_its_own(make_world: MakeWorld, length: int, deferred: bool) -> None:
    world, rank = running(make_world, "example", [length], deferred=deferred)
    while rank.uncommitted:
        rank.commit_oldest()
    rank.fork(1, [2, 3])
    committed = rank.requests[1].length
    full = (committed - 1) // 8
    assert world.step() == DECODE
    step = rank.scheduler.step()
    copies = step.clone_blocks.tolist()
    # Two of the three copy what is in the last block; the last one to be scheduled keeps it.
    assert len(copies) == (2 if (committed - 1) % 8 else 0)
    assert len(step.clone_states) == 2
    tables = step.block_table[:3].tolist()
    assert len({table[full] for table in tables}) == 3
    assert all(table[:full] == tables[0][:full] for table in tables)
    assert len(set(step.slot[:3].tolist())) == 3
    del step
    world.drain()


def test_i11_branches_of_branches_before_the_first_token(make_world: MakeWorld) -> None:
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 10, 20)
    world.step(commits=False)
    rank.fork(1, [2])
    rank.fork(2, [3, 4])
    rank.commit_oldest()
    rank.scheduler.check_invariants()
    assert [len(rank.requests[r].output) for r in (1, 2, 3, 4)] == [1, 0, 0, 0]
    world.drain()
    assert len({tuple(rank.requests[r].output) for r in (1, 2, 3, 4)}) == 4


def test_i12_a_branch_without_a_free_slot_waits_and_loses_nothing(make_world: MakeWorld) -> None:
    # 5 slots: two are read from outside after their requests ended, one is shared by four branches.
    world, rank = running(make_world, "example", [9, 9])
    for request in (1, 2):
        rank.scheduler.begin_transfer(request)
        rank.finish(request, ABORT)
    rank.add(3, 9, 30)
    while not rank.requests[3].output:
        world.step()
    rank.fork(3, [4, 5, 6])
    assert rank.scheduler.stats()["free_slots"] == 2
    assert world.step() == DECODE
    step = rank.scheduler.step()
    assert step.num_rows == 2, "two branches found a slot"
    assert len(step.clone_states) == 2
    del step
    for _ in range(3):
        world.step()
        assert rank.scheduler.step().num_rows == 2
    for request in (1, 2):
        rank.scheduler.end_transfer(request)
    world.step()
    assert rank.scheduler.step().num_rows == 4
    world.drain()


def test_i12_slots_are_those_of_the_sequences_and_slot_0(make_world: MakeWorld) -> None:
    for engine in ("example", "speculative", "tight"):
        rank = make_world(engine).ranks[0]
        assert rank.constants["kNumSlots"] >= rank.constants["kMaxNumSeqs"] + 2
        assert rank.scheduler.stats()["free_slots"] == rank.constants["kNumSlots"] - 1


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("draws", [Greedy, Modest])
@pytest.mark.parametrize("engine", ["speculative", "padded", "tight", "varlen", "example"])
def test_i13_blocks_cover_the_frame_in_flight_and_this_step(
    make_world: MakeWorld, engine: str, draws: Callable[[int], Any], length: int
) -> None:
    world = make_world(engine, deferred=True)
    world.rng = draws(length)
    rank = world.ranks[0]
    max_q, size = rank.constants["kMaxQ"], rank.constants["kBlockSize"]
    limit = rank.constants["kMaxModelLen"] - length
    rank.add(1, length, limit)
    in_flight = 0
    while True:
        committed = rank.requests[1].length
        if world.step() == DONE:
            break
        step = rank.scheduler.step()
        if step.kind == 2 and step.num_rows:
            capacity = int((step.block_table[0] > 0).sum()) * size
            flying = int(step.k_len[0] - step.q_len[0]) + 1 > committed
            assert capacity >= committed + (2 if flying else 1) * max_q
            in_flight += flying
        del step
    assert in_flight > 0
    rank.check_drained()


@pytest.mark.parametrize("engine", ["example", "speculative", "varlen", "tight"])
@pytest.mark.parametrize("draws", [Greedy, Modest])
def test_i16_a_ring_of_the_window_and_the_drafts_is_enough(
    make_world: MakeWorld, engine: str, draws: Callable[[int], Any]
) -> None:
    world = make_world(engine, deferred=True)
    world.rng = draws(3)
    rank = world.ranks[0]
    for request in range(1, 6):
        rank.add(request, 2 * request, 30)
    world.step(commits=False)
    rank.fork(1, [9])  # rewrites the last position of the prompt
    while rank.uncommitted:
        rank.commit_oldest()
    world.drain()


@pytest.mark.parametrize("engine", ["example", "speculative"])
def test_i16_a_ring_that_is_one_shorter_loses_a_live_token(make_world: MakeWorld, engine: str) -> None:
    world = make_world(engine)
    world.rng = Modest(1)
    rank = world.ranks[0]
    rank.device.ring -= 1
    rank.add(1, 12, 20)
    world.step(commits=False)
    rank.fork(1, [2])
    rank.commit_oldest()
    with pytest.raises(AssertionError, match="I16: ring of"):
        world.drain()
