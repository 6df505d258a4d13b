"""The module's interface: what is refused, what is borrowed, how a group ends, idles and fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from scheduler_world import DECODE, DONE, FAIL, IDLE, PREFILL, World

MakeWorld = Callable[..., World]
NONE = np.array([], np.int32)


def prompt(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


def test_the_longest_prompt_yields_one_token(make_world: MakeWorld) -> None:
    world = make_world("example")
    world.ranks[0].add(1, 95, 50, 0, [])
    world.drain()
    assert len(world.ranks[0].requests[1].output) == 1


def test_an_id_can_be_used_again_after_its_end(make_world: MakeWorld) -> None:
    scheduler = make_world("example").ranks[0].scheduler
    for _ in range(3):
        scheduler.add(9, prompt(5), 5, 0, NONE)
        scheduler.abort(9)
        scheduler.abort(9)
    assert scheduler.outcomes().ids.tolist() == [9, 9, 9]
    assert scheduler.outcomes().ids.tolist() == []
    with pytest.raises(ValueError, match=r"reason 6 is not in 1\.\.5"):
        scheduler.finish(9, 6)


def test_views_are_borrowed_read_only_and_keep_their_scheduler(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    rank.add(1, 5, 9, 0, [])
    rank.add(2, 3, 9, 0, [])
    assert world.step() == PREFILL
    step = rank.scheduler.step()
    shapes = {
        "ids": (2,), "q_len": (2,), "k_len": (2,), "prefill_len": (2,), "slot": (2,), "remap": (2,), "samples": (2,),
        "block_table": (2, 13), "history": (2, 3), "input_ids": (8,), "positions": (8,), "row_of_token": (8,),
        "clone_blocks": (0, 2), "clone_states": (0, 2), "zero_states": (2,), "ignored": (0,), "preempted": (0,),
    }  # fmt: skip
    for name, shape in shapes.items():
        view = getattr(step, name)
        assert view.shape == shape, name
        assert view.dtype == (np.uint64 if name in ("ids", "ignored", "preempted") else np.int32), name
        assert not view.flags.writeable, name
        assert view.size == 0 or not view.flags.owndata, name
    assert np.shares_memory(step.ids, rank.scheduler.step().ids)
    ids = step.ids
    del step, rank, world
    gc.collect()
    assert ids.tolist() == [1, 2]


def test_a_group_with_something_pending_idles_and_then_ends(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=2)
    world.ranks[1].scheduler.set_pending(True)
    assert [world.step() for _ in range(3)] == [IDLE] * 3
    world.ranks[0].add(1, 3, 1, 0, [])
    assert world.step() == PREFILL
    while (action := world.step()) == DECODE:
        pass
    assert action == IDLE
    world.ranks[1].scheduler.set_pending(False)
    assert world.step() == DONE
    assert world.ranks[0].scheduler.fingerprint() == world.ranks[0].initial


def test_a_request_that_dies_waiting_leaves_through_ignored_of_any_step(make_world: MakeWorld) -> None:
    world = make_world("example")
    rank = world.ranks[0]
    rank.scheduler.set_pending(True)
    rank.add(1, 3, 1, 0, [])
    rank.finish(1, 3)
    assert world.step() == IDLE
    assert rank.scheduler.step().kind == 0
    assert rank.scheduler.step().ignored.tolist() == [1]
    assert world.step() == IDLE
    assert rank.scheduler.step().ignored.tolist() == []


def test_an_error_on_one_rank_ends_all_through_the_flags_or_the_vote(make_world: MakeWorld) -> None:
    world = make_world("example", ranks=2)
    world.ranks[0].add(1, 3, 9, 0, [])
    while world.step() != DECODE:
        pass
    world.ranks[1].scheduler.set_error("the disk is full")
    world.step()  # at c = 1 nobody votes: the record of this step carries the error
    schedulers = [rank.scheduler for rank in world.ranks]
    assert [s.begin_step(world.flags) for s in schedulers] == [FAIL, FAIL]
    assert [s.fail_reason() for s in schedulers] == ["another rank of the group reported an error", "the disk is full"]
    assert [s.begin_step(None) for s in schedulers] == [FAIL, FAIL]

    world = make_world("example", ranks=2)
    world.ranks[0].scheduler.set_error("no such file")
    assert world.step() == FAIL


def test_a_stalled_group_names_the_head_and_what_it_lacks(make_world: MakeWorld) -> None:
    # No real workload of a NORMAL engine stalls, so the other rank of this group is made up.
    scheduler = make_world("example").ranks[0].scheduler
    scheduler.begin_step(None)
    assert scheduler.resolve_vote(np.array([0, 1, 1, 0, 0, 0], np.int32)) == FAIL
    assert scheduler.fail_reason().startswith("stalled: unfinished requests")


def test_a_clone_goes_its_own_way(make_world: MakeWorld) -> None:
    rank = make_world("example").ranks[0]
    rank.add(1, 5, 9, 0, [])
    clone = rank.scheduler.clone()
    assert clone.fingerprint() == rank.scheduler.fingerprint()
    clone.abort(1)
    assert clone.fingerprint() != rank.scheduler.fingerprint()
    assert rank.scheduler.outcomes().ids.tolist() == []
    assert clone.outcomes().ids.tolist() == [1]


def test_the_fingerprint_forgets_step_ids_statistics_and_the_order_of_free_blocks(make_world: MakeWorld) -> None:
    used, fresh = make_world("example"), make_world("example")
    for request in range(1, 4):
        used.ranks[0].add(request, 20, 9, 0, [])
    used.drain()
    for world in (used, fresh):
        world.ranks[0].add(7, 20, 9, 0, [])
        world.step()
        world.step()
    steps = [world.ranks[0].scheduler.step() for world in (used, fresh)]
    assert steps[0].step_id != steps[1].step_id
    assert steps[0].block_table.tolist() != steps[1].block_table.tolist()
    assert used.ranks[0].scheduler.fingerprint() == fresh.ranks[0].scheduler.fingerprint()


def test_engines_of_different_specs_live_in_one_process(engines: dict[str, ModuleType]) -> None:
    assert engines["example"].plan_digest == "0123456789abcdef"
    assert engines["speculative"].plan_digest == "speculative"
    assert engines["example"].files_digest != engines["speculative"].files_digest
    constants = [engines[name].constants() for name in ("example", "speculative")]
    assert [c["kNextn"] for c in constants] == [0, 5]
    assert constants[0]["kEngineType"] == "NORMAL"
    assert constants[0]["kGraphSizes"] == [1, 2, 4]
    assert constants[0]["kStateRegions"] == [0, 128, 128, 128]
    assert engines["example"].Scheduler is not engines["speculative"].Scheduler
