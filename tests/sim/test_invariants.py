"""The invariants of the scheduler by number, each on the smallest scene that could break it.

The same rules are asserted on every step of the random workloads; here each has a scene of its own. The example engine
has 4 sequences, 24 blocks of 8 tokens, 64 prompt tokens a step, intervals 7 (ALL) and 10 (ANY), a burst of 2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scheduler_world import ABORT, DECODE, DONE, LENGTH, PREEMPTED, PREFILL, STOP, VOTE, World

MakeWorld = Callable[..., World]


def decode_steps_until_prefill(world: World) -> int:
    """Decode steps before the next prefill step, which is run too."""
    for count in range(100):
        if world.step() == PREFILL:
            return count
    raise AssertionError("no prefill")


def step_until(world: World, wanted: int) -> None:
    while world.step() != wanted:
        pass


def busy_group(make_world: MakeWorld, ranks: int) -> World:
    """Rank 0 decodes for long; the decode counter of the group is 1."""
    world = make_world("example", ranks=ranks)
    world.ranks[0].add(1, 4, 80, 0, [])
    step_until(world, DECODE)
    return world


def test_i02_step_type_is_equal_on_all_ranks(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=3)
    world.ranks[1].add(1, 90, 5, 0, [])
    assert [world.step() for _ in range(3)] == [PREFILL, PREFILL, DECODE]
    world.drain()


@pytest.mark.parametrize("ranks", [1, 2])
def test_i03_an_all_point_prefills_when_every_rank_wants(make_world: MakeWorld, ranks: int) -> None:
    world = busy_group(make_world, ranks)
    for number, rank in enumerate(world.ranks):
        rank.add(10 + number, 4, 3, 0, [])
    assert decode_steps_until_prefill(world) == 7 - 1


def test_i04_one_rank_is_enough_at_an_any_point_only(make_world: MakeWorld) -> None:
    world = busy_group(make_world, 2)
    world.ranks[1].add(2, 4, 3, 0, [])
    assert decode_steps_until_prefill(world) == 10 - 1


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


def test_i06_an_admissible_head_is_prefilled_within_the_any_interval(make_world: MakeWorld) -> None:
    world = busy_group(make_world, 2)
    for request in range(2, 5):
        world.ranks[1].add(request, 4, 30, 0, [])
        assert decode_steps_until_prefill(world) <= 10
    world = make_world("example", ranks=2)
    world.ranks[1].add(1, 4, 1, 0, [])
    assert world.step() == PREFILL, "at once when the group is idle"


def test_i07_counters_are_equal_on_all_ranks(make_world: MakeWorld) -> None:
    # World.step compares every rank with one counter of the group; here the ranks' loads differ as much as they can.
    world = make_world("example", ranks=3)
    for request in range(1, 25):
        world.ranks[request % 2].add(request, 1 + request * 3, request, 0, [])
    world.drain()


def test_i08_a_rank_without_work_joins_with_an_empty_or_a_padded_step(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=2)
    world.ranks[0].add(1, 4, 5, 0, [])
    assert world.step() == PREFILL
    step = world.ranks[1].scheduler.step()
    assert (step.kind, step.num_rows, step.total_q, len(step.input_ids)) == (1, 0, 0, 0)
    step_until(world, DECODE)
    step = world.ranks[1].scheduler.step()
    assert (step.kind, step.num_rows, step.total_q, step.graph) == (2, 0, 0, 1)
    assert step.q_len.tolist() == [1] + [0] * 7


def test_i09_i10_i12_blocks_and_slots_add_up(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    for request in range(1, 5):
        rank.add(request, 5 * request, 20, 0, [])
    step_until(world, DECODE)
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


@pytest.mark.parametrize("length", range(1, 9))
def test_i13_blocks_cover_the_frame_in_flight_and_this_step(make_world: MakeWorld, length: int) -> None:
    world = make_world("speculative", deferred=True, seed=length)
    rank = world.ranks[0]
    rank.add(1, length, 55, 0, [])
    in_flight = 0
    while True:
        committed = length + len(rank.requests[1].output)
        if world.step() == DONE:
            break
        step = rank.scheduler.step()
        if step.kind == 2 and step.num_rows:
            capacity = int((step.block_table[0] > 0).sum()) * rank.constants["kBlockSize"]
            flying = int(step.k_len[0] - step.q_len[0]) + 1 > committed
            assert capacity >= committed + (2 if flying else 1) * 6
            in_flight += flying
    assert in_flight > 0


def test_i14_counts_outside_the_verified_length_are_refused(make_world: MakeWorld) -> None:
    world = make_world("speculative")
    rank = world.ranks[0]
    rank.add(1, 5, 50, 0, [])
    step_until(world, DECODE)
    rank.scheduler.begin_step(world.flags)
    step = rank.scheduler.step()
    assert step.q_len[0] == 6
    confidences = np.zeros((1, 5), np.uint16)
    tokens = np.zeros((1, 6), np.int32)
    before = rank.scheduler.fingerprint()
    for count in (0, 7, -1):
        with pytest.raises(ValueError, match=rf"count {count} is not in 1\.\.6"):
            rank.scheduler.commit(step.step_id, tokens, np.array([count], np.int32), confidences)
    for wrong in (tokens[:, :5], np.zeros((2, 6), np.int32)):
        with pytest.raises(ValueError, match="tokens has shape"):
            rank.scheduler.commit(step.step_id, wrong, np.array([1], np.int32), confidences)
    with pytest.raises(ValueError, match="comes first"):
        rank.scheduler.commit(step.step_id + 1, tokens, np.array([1], np.int32), confidences)
    with pytest.raises(ValueError, match="is negative"):
        rank.scheduler.commit(step.step_id, tokens - 1, np.array([6], np.int32), confidences)
    assert rank.scheduler.fingerprint() == before, "a refused commit changes nothing"
    assert rank.scheduler.commit(step.step_id, tokens, np.array([6], np.int32), confidences).emitted[0] == 6


def test_i17_nothing_is_emitted_after_an_end_id_inside_the_accepted_drafts(make_world: MakeWorld) -> None:
    scheduler = make_world("speculative").ranks[0].scheduler
    scheduler.add(1, np.arange(5, dtype=np.int32), 50, 3, np.array([77], np.int32))
    confidences = np.zeros((1, 5), np.uint16)
    flags, tokens, emitted = None, [[77, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [77, 5, 77, 9, 9, 9]], []
    for row, count in zip(tokens, [1, 1, 6], strict=True):
        action = scheduler.begin_step(flags)
        while action == VOTE:
            action = scheduler.resolve_vote(scheduler.vote())
        step_id = scheduler.step().step_id
        flags = scheduler.flags()
        done = scheduler.commit(step_id, np.array([row], np.int32), np.array([count], np.int32), confidences)
        emitted.append((int(done.emitted[0]), int(done.reasons[0])))
    # The first 77 comes before min_tokens = 3; the one that is the third token ends the request, the rest is dropped.
    assert emitted == [(1, 0), (1, 0), (1, STOP)]
    ended = scheduler.outcomes()
    assert (ended.ids.tolist(), ended.reasons.tolist(), ended.stop_tokens.tolist()) == ([1], [STOP], [77])


def test_i18_the_preempted_request_ends_once_and_returns_everything_in_that_step(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    for request in range(1, 5):
        rank.add(request, 40, 40, 0, [])
    preempted: list[int] = []
    while not preempted:
        before = {request: len(rank.requests[request].output) for request in rank.requests}
        assert world.step() in (PREFILL, DECODE)
        preempted = rank.scheduler.step().preempted.tolist()
    assert len(preempted) == 1
    assert before[preempted[0]] == max(before.values()), "the longest output gives way"
    assert rank.requests[preempted[0]].reason == PREEMPTED
    step = rank.scheduler.step()
    assert rank.scheduler.stats()["free_blocks"] == 24 - int((step.block_table > 0).sum())
    world.drain()
    reasons = [expected.reason for expected in rank.requests.values()]
    assert reasons.count(PREEMPTED) == rank.scheduler.stats()["preemptions"] >= 1


@pytest.mark.parametrize("deferred", [False, True])
def test_i18_recomputation_ends_nothing_and_changes_no_output(make_world: MakeWorld, deferred: bool) -> None:
    world = make_world("speculative", deferred=deferred)
    rank = world.ranks[0]
    for request in range(1, 6):
        rank.add(request, 20, 44, 0, [])
    world.drain()
    assert rank.scheduler.stats()["preemptions"] > 0
    assert {expected.reason for expected in rank.requests.values()} == {LENGTH}
    if deferred:
        assert rank.scheduler.stats()["dropped_rows"] > 0, "a frame in flight was dropped"


@pytest.mark.parametrize("cut", [1, 6, 7, 50, 64])
def test_i19_a_prompt_is_cut_to_the_budget_and_nobody_joins_after_the_cut(make_world: MakeWorld, cut: int) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    if cut < 64:
        rank.add(1, 64 - cut, 1, 0, [])
    rank.add(2, 80, 2, 0, [])
    rank.add(3, 1, 1, 0, [])
    assert world.step() == PREFILL
    step = rank.scheduler.step()
    assert step.ids[-1] == 2
    assert (step.q_len[-1], step.k_len[-1], step.samples[-1]) == (cut, cut, 0)
    assert step.total_q == 64
    assert world.step() == PREFILL
    step = rank.scheduler.step()
    if cut == 64 or 80 - cut <= 64:
        assert (step.q_len[0], step.k_len[0], step.samples[0]) == (80 - cut, 80, 1)
        assert step.history[0].tolist() == [rank.prompt_token(2, cut + i) for i in (-3, -2, -1)]
    world.drain()


def test_i19_context_parallel_chunks_are_even_except_the_last(make_world: MakeWorld) -> None:
    world = make_world("speculative")  # cp 2, 22 tokens a step
    rank = world.ranks[0]
    rank.add(1, 47, 1, 0, [])
    rank.add(2, 2, 1, 0, [])
    chunks = []
    while world.step() == PREFILL:
        chunks.append(rank.scheduler.step().q_len.tolist())
    assert chunks == [[20], [20], [7, 2]], "two tokens are left beside each cut chunk, and nobody joins"


def test_i19_the_sum_of_k_lengths_is_a_limit(make_world: MakeWorld) -> None:
    world = make_world("example")  # 128 in all
    rank = world.ranks[0]
    rank.add(1, 94, 1, 0, [])
    rank.add(2, 34, 1, 0, [])
    rank.add(3, 1, 1, 0, [])
    assert world.step() == PREFILL
    assert world.step() == PREFILL
    assert rank.scheduler.step().k_len.tolist() == [94, 34]


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_i20_an_abort_in_any_state_leaves_nothing_behind(make_world: MakeWorld, steps: int, deferred: bool) -> None:
    # After 0..5 steps the request of 90 tokens is waiting, partly prefilled, running with 0, 1, 2, 3 tokens.
    world = make_world("example", deferred=deferred)
    rank = world.ranks[0]
    rank.add(1, 90, 6, 0, [])
    for _ in range(steps):
        world.step()
    rank.finish(1, ABORT)
    rank.scheduler.check_invariants()
    assert rank.scheduler.stats()["free_blocks"] == 24
    output = list(rank.requests[1].output)
    world.drain()
    assert rank.requests[1].output == output
    assert rank.requests[1].reason == ABORT


def test_i20_an_abort_while_its_step_runs_drops_the_step_s_tokens(make_world: MakeWorld) -> None:
    for kind in (PREFILL, DECODE):
        world = make_world("example")
        rank = world.ranks[0]
        rank.add(1, 4, 9, 0, [])
        rank.add(2, 4, 9, 0, [])
        if kind == DECODE:
            step_until(world, DECODE)
        action = rank.scheduler.begin_step(world.flags)
        while action == VOTE:
            action = rank.scheduler.resolve_vote(rank.scheduler.vote())
        assert action == kind
        world.group.decode_steps, world.group.burst = (0, 1) if kind == PREFILL else (2, 0)
        world.group.burst_began_any, world.group.idle = True, False
        rank.execute(world.rng)
        world.flags = rank.scheduler.flags()
        before = len(rank.requests[1].output)
        rank.finish(1, ABORT)
        rank.commit_oldest()
        assert len(rank.requests[1].output) == before
        assert len(rank.requests[2].output) > 0
        world.drain()


def test_i22_sequences_never_exceed_max_num_seqs(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    for request in range(1, 12):
        rank.add(request, 1, 3 + request, 0, [])
    most = 0
    while world.step() != DONE:
        stats = rank.scheduler.stats()
        most = max(most, stats["running"] + stats["prompted"] + stats["partial"])
    assert most == 4
