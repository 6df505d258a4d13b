"""Public bugs of shared, read and reserved memory: B8, B9, B24, B25, B30, B32."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from scheduler_world import ABORT, DECODE, IDLE, LENGTH, PREFILL, Rank, World

MakeWorld = Callable[..., World]


def decoding(make_world: MakeWorld, engine: str, length: int = 20) -> tuple[World, Rank]:
    """Request 1 decodes."""
    world = make_world(engine)
    world.ranks[0].add(1, length, 25)
    while not world.ranks[0].last_decode:
        world.step()
    return world, world.ranks[0]


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_b08_blocks_with_a_reader_or_writer_outside_are_not_handed_out(make_world: MakeWorld, frames: int) -> None:
    """A request was aborted while a copy still wrote to its blocks, and another request got them."""
    world, rank = decoding(make_world, "example")
    while len(rank.uncommitted) < frames:
        world.step(commits=False)
    rank.scheduler.begin_transfer(1)
    blocks, free = rank.scheduler.blocks(1).tolist(), rank.scheduler.stats()["free_blocks"]
    slot = rank.scheduler.slot(1)
    rank.finish(1, ABORT)
    while rank.uncommitted:
        rank.commit_oldest()
    assert rank.scheduler.stats()["free_blocks"] == free, "nothing is free yet"
    assert rank.scheduler.stats()["draining"] == 1
    content = rank.device.content(blocks, 20)
    for request in range(2, 9):
        rank.add(request, 40, 5)
    for _ in range(30):
        world.step()
        assert not set(blocks) & {block for held in rank.holders().values() for block in held}
        step = rank.scheduler.step()
        assert slot not in step.slot
        del step
    assert rank.device.content(blocks, 20) == content
    free = rank.scheduler.stats()["free_blocks"]
    rank.scheduler.end_transfer(1)
    assert rank.scheduler.stats()["free_blocks"] == free + len(blocks), "the one way back"
    world.drain()


def test_b08_a_load_that_comes_after_the_abort_of_its_request(make_world: MakeWorld) -> None:
    """A cache that was still being loaded for an aborted request went to the blocks of the next one."""
    world = make_world("completion", loads=False)
    rank = world.ranks[0]
    rank.add_prompted(1, 20)
    assert world.step() == IDLE
    blocks = rank.scheduler.blocks(1).tolist()
    rank.finish(1, ABORT)
    rank.add_prompted(2, 20)
    world.step()
    assert rank.loads == [1, 2]
    assert not set(rank.scheduler.blocks(2).tolist()) & set(blocks)
    rank.loads.remove(1)
    rank.scheduler.end_transfer(1)
    rank.fill_loads()
    world.loads = True
    world.drain()


@pytest.mark.parametrize("steps", [0, 1])
def test_b09_a_fork_holds_its_blocks_from_the_call_on(make_world: MakeWorld, steps: int) -> None:
    """A block was looked up for sharing, and handed out before it was pinned."""
    world, rank = decoding(make_world, "example")
    rank.fork(1, [2])
    shared = rank.scheduler.blocks(2).tolist()
    for _ in range(steps):
        world.step()
    rank.finish(1, ABORT)
    rank.add(3, 60, 3)
    world.step()
    assert set(shared[:2]) <= set(rank.scheduler.blocks(2).tolist())
    while 3 not in rank.last_decode:
        world.step()
        held = rank.holders()
        assert not set(held.get(3, [])) & set(held.get(2, []))
    world.drain()  # every read compares what it finds


def test_b09_the_source_of_a_copy_is_kept_until_the_next_step(make_world: MakeWorld) -> None:
    """The source of a copy on write was handed out before the copy had run."""
    world, rank = decoding(make_world, "example")
    rank.fork(1, [2])
    world.step()
    step = rank.scheduler.step()
    (source, _), (slot, _) = step.clone_blocks[0].tolist(), step.clone_states[0].tolist()
    assert source in rank.scheduler.blocks(1).tolist() + rank.scheduler.blocks(2).tolist()
    del step
    for request in (1, 2):
        rank.finish(request, ABORT)
    stats = rank.scheduler.stats()
    assert (stats["free_blocks"], stats["free_slots"]) == (23, 4), "the sources are not free yet"
    rank.add(3, 90, 3)  # 12 blocks
    for _ in range(2):
        world.step()
    assert rank.scheduler.stats()["free_blocks"] == 24 - len(rank.scheduler.blocks(3))
    assert slot != 0
    world.drain()


@pytest.mark.parametrize("engine", ["example", "tight", "speculative", "completion"])
def test_b09_a_storm_of_branches(make_world: MakeWorld, engine: str) -> None:
    """Branches, ends and growth in the same step: no source of a copy is also its destination or anybody's block."""
    for seed in range(10):
        world = make_world(engine, seed=seed, deferred=seed % 2 == 1)
        rank, rng = world.ranks[0], random.Random(seed)
        next_id = 1
        copies = 0
        for _ in range(80):
            for _ in range(2):
                if engine == "completion":
                    rank.add_prompted(next_id, rng.randint(1, 9), max_tokens=rng.randint(2, 20))
                else:
                    rank.add(next_id, rng.randint(1, 9), rng.randint(1, 20))
                next_id += 1
            while rank.uncommitted:
                rank.commit_oldest()
            parents = [request for request in rank.holders() if request in rank.last_decode]
            places = rank.scheduler.stats()["free_places"]
            if parents and places and rank.requests[parents[-1]].output:
                rank.fork(parents[-1], list(range(next_id, next_id + places)))
                next_id += places
                if rng.random() < 0.5:
                    rank.finish(parents[-1], ABORT)
            world.step()
            if rank.scheduler.step().kind == 2:
                copies += len(rank.scheduler.step().clone_states)
        world.drain()
        if copies:
            return
    raise AssertionError("nothing was copied")


@pytest.mark.parametrize("engine", ["example", "speculative", "padded", "varlen", "completion", "tight"])
def test_b23_b24_a_padded_step_writes_to_block_0_slot_0_and_the_real_rows_only(
    make_world: MakeWorld, engine: str
) -> None:
    """Padding rows wrote to a live slot, because -1 counts from the end, or left block 0 with values nobody wiped."""
    world = make_world(engine, ranks=2)  # rank 1 has no request: its steps are padding only
    rank = world.ranks[0]
    for request in range(1, 4):
        if engine == "completion":
            rank.add_prompted(request, 4 + request)
        else:
            rank.add(request, 4 + request, 9)
    padded = 0
    for _ in range(30):
        if world.step() != DECODE:
            continue
        for member in world.ranks:
            step = member.scheduler.step()
            real = step.num_rows
            for row in range(len(step.ids)):
                tokens = step.positions[step.row_of_token == row]
                if row >= real:
                    padded += len(tokens)
                    assert not step.block_table[row].any()
                    assert step.slot[row] == 0
                    assert tokens.tolist() == list(range(step.q_len[row])), "it reads nothing that was there before"
                    assert len(tokens) <= member.constants["kMaxQ"]
                else:
                    assert step.slot[row] > 0
                    blocks = step.block_table[row, tokens // member.constants["kBlockSize"]]
                    assert (blocks > 0).all()
            del step
    assert padded > 0
    world.drain()


def test_b25_padding_takes_nothing_from_a_full_pool(make_world: MakeWorld) -> None:
    """The request that fills up a graph was allocated when the pool was full, so graphs were lost under load."""
    world = make_world("example", ranks=2)
    rank, other = world.ranks
    for request in (1, 2):
        rank.add_prompted(request, 90)  # 12 of the 24 blocks each
        other.add_prompted(request, 60)
    other.add_prompted(3, 60)
    padded = 0
    for _ in range(6):
        if world.step() == DECODE and not rank.scheduler.stats()["free_blocks"]:
            step = rank.scheduler.step()
            padded += len(step.ids) - step.num_rows
            assert step.num_rows == 2
            del step
    assert padded > 0, "graphs were filled up while no block was free"
    world.drain()


@pytest.mark.parametrize("branches", [0, 2])
def test_b30_usage_counts_blocks_and_not_references(make_world: MakeWorld, branches: int) -> None:
    """Usage was counted by references, rose above 100 % and refused every request."""
    world, rank = decoding(make_world, "example", 72)
    rank.fork(1, list(range(2, 2 + branches)))
    # 10 of 24 blocks are in use, by up to 3 requests; the limit is nine tenths.
    assert rank.scheduler.stats()["free_blocks"] == 24 - len({b for held in rank.holders().values() for b in held})
    rank.add(9, 16, 1)
    assert world.until(PREFILL) <= 7, "the request is admissible at the next point"
    world.drain()


@pytest.mark.parametrize(("second", "wants"), [(79, 1), (87, 0)])
def test_b30_the_limit_of_usage_is_exact(make_world: MakeWorld, second: int, wants: int) -> None:
    """A threshold on something other than used blocks admits too much or nothing."""
    world = make_world("example", loads=False)
    rank = world.ranks[0]
    rank.add_prompted(1, 87)  # 11 blocks of 24, and 10 or 11 more: nine tenths of them are 21.6
    rank.add_prompted(2, second)
    rank.add(3, 4, 1)
    action = world.step()
    assert rank.scheduler.decision().want == wants
    assert (action == PREFILL) == bool(wants)
    assert 24 - rank.scheduler.stats()["free_blocks"] == 22 - wants, "the prompt of one block has ended"
    rank.fill_loads()
    world.loads = True
    world.drain()


@pytest.mark.parametrize("engine", ["speculative", "tight", "varlen_gain"])
@pytest.mark.parametrize("deferred", [False, True])
def test_b32_a_sequence_that_lost_its_memory_goes_on_as_if_it_had_not(
    make_world: MakeWorld, engine: str, deferred: bool
) -> None:
    """A state that was evicted and restored between turns differed, and a few chats in a hundred looped."""
    outputs = []
    preemptions = []
    for together in (True, False):
        world = make_world(engine, deferred=deferred)
        rank = world.ranks[0]
        for request in range(1, 9):
            rank.add(request, 6 + request, 44 if engine == "speculative" else 14)
            if not together:
                world.drain()  # one after the other: nobody is ever preempted
        for count in range(200 if together else 0):
            world.step()
            if count % 7 == 0 and rank.last_decode:
                request = rank.last_decode[0]
                if not rank.requests[request].reason:
                    rank.scheduler.pause(request)
                    world.step()
                    if not rank.requests[request].reason:
                        rank.scheduler.resume(request)
        world.drain()
        preemptions.append(rank.scheduler.stats()["preemptions"])
        outputs.append([rank.requests[request].output for request in range(1, 9)])
        assert {rank.requests[request].reason for request in range(1, 9)} == {LENGTH}
    assert outputs[0] == outputs[1]
    assert preemptions[0] > 0 == preemptions[1]


def test_b32_states_are_zeroed_or_copied_exactly_when_a_sequence_begins(make_world: MakeWorld) -> None:
    """A slot was used again with what its last sequence had left in it."""
    for engine in ("example", "tight"):
        world = make_world(engine)
        rank = world.ranks[0]
        for request in range(1, 20):
            rank.add(request, 3, 4)
        zeroed = 0
        while world.step() in (PREFILL, DECODE):
            step = rank.scheduler.step()
            fresh = step.slot[step.k_len == step.q_len].tolist() if step.kind == 1 else []
            assert step.zero_states.tolist() == fresh
            zeroed += len(fresh)
            del step
        assert zeroed == 19 + rank.scheduler.stats()["preemptions"]
