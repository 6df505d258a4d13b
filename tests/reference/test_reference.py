"""The reference itself, against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scheduler_configs import SchedulerSpec

from reference.admission import merged
from reference.blocks import Pool
from reference.config import Config
from reference.estimators import Estimators, ForwardRuntimeEstimator, SamplerRuntimeEstimator
from reference.prefill import Budget, chunk_end
from reference.records import DECODE, DONE, IDLE, PREFILL, VOTE
from reference.requests import Request
from reference.scheduler import Scheduler
from reference.verification import Candidate, FixedVerification, VarlenVerification, split, survivals

PLAIN = SchedulerSpec()  # 4 places, blocks of 4 tokens, intervals 2 and 3


def config(**changes: Any) -> Config:
    return Config.from_constants(replace(PLAIN, **changes).constants())


def scheduler(**changes: Any) -> Scheduler:
    return Scheduler(replace(PLAIN, **changes).constants())


def add(engine: Scheduler, request: int, length: int, max_tokens: int = 20) -> None:
    engine.add(request, range(10, 10 + length), max_tokens, 0, ())


def advance(engine: Scheduler, flags: Any = None) -> int:
    """One step of a group of one rank."""
    action = engine.begin_step(flags)
    while action == VOTE:
        action = engine.resolve_vote(engine.vote())
    return action


def commit(engine: Scheduler, *tokens: list[int]) -> Any:
    """The current step's results: each row's tokens, of which a prefill row's first is no draft."""
    step, max_q, nextn = engine.step(), engine.config.max_q, engine.config.nextn
    matrix = np.full((step.num_rows, max_q), -1, np.int32)
    for row, values in enumerate(tokens):
        matrix[row, : len(values)] = values
    counts = [len(values) if step.kind == 2 else int(step.samples[i]) for i, values in enumerate(tokens)]
    confidences = np.full((step.num_rows, nextn), 65535, np.uint16)
    return engine.commit(step.step_id, matrix, np.array(counts, np.int32), confidences)


def test_pool_hands_out_at_the_head_and_takes_back_at_the_tail() -> None:
    pool = Pool(4)
    assert [pool.take(), pool.take()] == [1, 2]
    pool.release(1)
    assert [pool.take(), pool.take()] == [3, 1]


def test_source_of_a_copy_is_not_handed_out_before_the_next_step() -> None:
    pool = Pool(4)
    shared = pool.take()
    pool.share(shared)
    assert pool.copy_on_write(shared) == 2
    pool.release(shared)  # the last one gives it up, the copy may not have run yet
    assert list(pool.free) == [3]
    pool.unpin_all()
    assert list(pool.free) == [3, 1]


def request(length: int, **changes: Any) -> Request:
    return Request(1, [0] * length, length, 100, 0, frozenset(), **changes)


@pytest.mark.parametrize(
    ("cp", "spans", "checkpoints", "tokens", "computed", "end"),
    [
        (1, (), (), 10, 0, 10),  # the budget
        (1, (), (), 10, 25, 30),  # the rest
        (1, (), (4, 8, 15), 10, 0, 8),  # the largest checkpoint within it
        (1, ((6, 12),), (), 10, 0, 6),  # the whole image moves on
        (1, ((6, 10),), (), 10, 0, 10),  # it ends where the budget does
        (2, (), (), 10, 0, 8),  # multiples of 4
        (2, (), (), 10, 8, 16),  # counted from what is computed
        (2, ((7, 9),), (), 10, 0, 4),  # 8 lies inside
        (2, (), (5, 6), 10, 0, 8),  # a checkpoint that is not aligned is none
        (1, ((0, 12),), (), 10, 0, 0),  # does not fit into what is left: empty
    ],
)
def test_chunk_end(cp: int, spans: Any, checkpoints: Any, tokens: int, computed: int, end: int) -> None:
    prompt = request(30, spans=spans, checkpoints=checkpoints)
    budget = Budget(tokens, 1, 100)
    assert chunk_end(config(cp=cp), prompt, computed, budget, step_is_empty=False) == end


def test_prompt_waits_whole_for_the_sum_of_lengths() -> None:
    assert chunk_end(config(), request(30), 0, Budget(32, 1, 29), step_is_empty=False) == 0
    assert chunk_end(config(), request(30), 0, Budget(32, 1, 30), step_is_empty=False) == 30
    assert chunk_end(config(), request(30), 0, Budget(32, 0, 30), step_is_empty=False) == 0


def test_spans_without_an_aligned_cut_between_them_count_as_one() -> None:
    assert merged([(0, 4), (6, 8), (11, 12)], 3) == [(0, 8), (11, 12)]


def test_survival_is_a_product_with_a_shift_per_factor() -> None:
    # 65536 * 65535 >> 16 = 65535; 65535 * 32768 >> 16 = 32767; 32767 * 2 >> 16 = 0
    assert survivals(3, [65535, 32768, 2]) == [65535, 32767, 0]


def test_split_takes_survival_then_position_then_row() -> None:
    assert split([2, 2], [[9, 5], [9, 9]], 4) == [2, 2]  # both first drafts, before the equal second one
    assert split([2, 2], [[9, 5], [9, 9]], 5) == [2, 3]
    assert split([1, 1], [[7], [7]], 3) == [2, 1]


def test_fixed_gives_up_drafts_from_the_last_row_on() -> None:
    rows = [Candidate(3, None, None, False)] * 3
    verification = FixedVerification(config(nextn=3, padded=True))
    assert verification.choose(rows, None).q_len == [4, 4, 4]
    assert verification.choose(rows, 8).q_len == [4, 3, 1]


def varlen(curve: dict[int, float], **changes: Any) -> VarlenVerification:
    verification = VarlenVerification(config(seqs=2, nextn=1, varlen=True, graph_interval=1, **changes))
    verification.curve = curve
    return verification


SURE, NEVER = Candidate(1, (65535,), (65535,), False), Candidate(1, (0,), (0,), False)


def test_varlen_total() -> None:
    # Graphs of 1 .. 4 tokens. 2 of 4: 2 / 1 = 2 a millisecond; 3: 3 / 1.4 = 2.14; 4: 3 / 1.8 = 1.67.
    verification = varlen({1: 1.0, 2: 1.0, 3: 1.4, 4: 1.8})
    assert verification.choose([NEVER, SURE], None).q_len == [1, 2]
    # All that can be accepted is worth it when the steps cost the same; then the smaller total of two equal ones.
    assert varlen({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}).choose([SURE, SURE], None).q_len == [2, 2]
    assert varlen({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}).choose([NEVER, NEVER], None).q_len == [1, 1]


def test_least_gain_has_a_hysteresis() -> None:
    verification = varlen({1: 1.0, 2: 1.0, 3: 1.05, 4: 1.15}, min_gain=(1, 10))
    # Nothing accepted: 2 / 1 against 2 / 1.15, a gain of 0.15: variable. Then 3 / 1.05 against 3 / 1.15: 0.095, still.
    assert verification.choose([NEVER, SURE], None).q_len == [2, 2]
    assert verification.choose([NEVER, NEVER], None).q_len == [1, 1]
    assert verification.choose([NEVER, SURE], None).q_len == [1, 2]
    assert verification.choose([SURE, SURE], None).q_len == [2, 2]
    assert not verification.variable


def test_device_splits_again_where_the_newest_confidences_are_its_own() -> None:
    flying = Candidate(1, (0,), (0,), True)
    assert varlen({1: 1.0, 2: 1.0, 3: 1.4, 4: 1.8}).choose([flying, SURE], None).provisional
    # Nothing to split again among rows without drafts in flight; 2 of 3 tokens, as the second row's are not accepted.
    lengths = varlen({1: 1.0, 2: 1.0, 3: 1.4, 4: 1.8}).choose([Candidate(0, None, None, True), NEVER], None)
    assert (lengths.q_len, lengths.provisional) == ([1, 1], False)


def test_estimators() -> None:
    forward = ForwardRuntimeEstimator()
    for value in [1.0] * 25 + [3.0] * 24:
        forward.add(value)
    assert forward.slope() == 0.0
    forward.add(3.0)
    assert forward.slope() == 2.0
    for _ in range(100):
        for value in range(50):
            forward.add(value)
    assert forward.slope() == 24.5  # the oldest block has left
    sampler = SamplerRuntimeEstimator()
    assert sampler.estimate(3) == 0.0
    for value in range(12):
        sampler.add(4, value)
    assert [sampler.estimate(rows) for rows in (3, 4, 9)] == [7.0, 7.0, 7.0]
    sampler.add(2, 1.0)
    assert sampler.estimate(3) == 1.0


def test_latest_observation_is_held_back() -> None:
    estimators = Estimators()
    estimators.observe({2: 1.0}, 2, 1, 2.0, 0.5)
    assert estimators.sampler.estimate(1) == 0.0
    estimators.observe({2: 1.0}, 2, 1, 9.0, 9.0)
    assert estimators.sampler.estimate(1) == 0.5
    assert estimators.forward.block == [0.5]


def test_a_short_life() -> None:
    engine = scheduler()
    add(engine, 7, 5, max_tokens=2)
    assert advance(engine) == PREFILL
    step = engine.step()
    assert (step.ids.tolist(), step.slot.tolist(), step.block_table[0, :3].tolist()) == ([7], [1], [1, 2, 0])
    assert step.zero_states.tolist() == [1]
    assert commit(engine, [50]).emitted.tolist() == [1]
    assert advance(engine, engine.flags()) == DECODE
    step = engine.step()
    assert (step.positions.tolist(), step.input_ids.tolist(), step.remap.tolist()[0]) == ([5], [50], -1)
    assert step.history[0].tolist() == [12, 13, 14]
    assert commit(engine, [51]).reasons.tolist() == [2]
    assert advance(engine, engine.flags()) == DONE


def test_decode_steps_between_votes() -> None:
    engine = scheduler()
    add(engine, 1, 5)
    actions = [advance(engine)]
    commit(engine, [50])
    for _ in range(5):
        actions.append(engine.begin_step(engine.flags()))
        if actions[-1] == VOTE:
            assert engine.resolve_vote(engine.vote()) == DECODE
        commit(engine, [50])
    # c = 0, 1: decode; c = 2: ALL; c = 3: ANY; c = 4: ALL
    assert actions == [PREFILL, DECODE, DECODE, VOTE, VOTE, VOTE]
    assert (engine.decision().point, engine.decision().want, engine.decision().decode_counter) == (1, 0, 4)


def test_fork_shares_until_one_writes() -> None:
    engine = scheduler()
    add(engine, 1, 6)
    advance(engine)
    engine.fork(1, [2])  # before the commit: the child samples a first token of its own
    commit(engine, [50])
    assert engine.slot(2) == engine.slot(1) == 1
    assert engine.blocks(2).tolist() == engine.blocks(1).tolist() == [1, 2]
    assert advance(engine, engine.flags()) == DECODE
    step = engine.step()
    # The child's output is the shorter, so it is selected first, and copies; its parent is then the last sharer.
    assert step.ids[:2].tolist() == [1, 2]
    assert step.clone_states.tolist() == [[1, 2]]
    assert step.clone_blocks.tolist() == [[2, 3]]
    assert step.positions[:2].tolist() == [6, 5]


def test_preempted_request_comes_back_from_its_committed_tokens() -> None:
    # Three sequences of 4 tokens in 13 + 3 blocks of 4: each takes a block and grows to its end.
    engine = scheduler(stop=False, spare_blocks=0, model_len=16)
    assert engine.config.num_blocks == 6  # ceil(17 / 4), and block 0
    for name in (1, 2, 3):
        add(engine, name, 4)
    assert advance(engine) == PREFILL
    commit(engine, [50], [50], [50])
    assert advance(engine, engine.flags()) == DECODE
    step = engine.step()
    # One block each, and one more each for position 4; the last one finds none and can only preempt itself.
    assert step.ids[:2].tolist() == [1, 2]
    assert step.preempted.tolist() == [3]
    assert [r.id for r in engine.state.prefill_queue] == [3]
    assert engine.state.prefill_queue[0].length == 5


def test_transfer_keeps_the_place_of_an_ended_request() -> None:
    engine = scheduler(engine="COMPLETION")
    engine.add_prompted(1, [5, 6, 7], 2, 9, 0, ())
    assert advance(engine) == IDLE
    assert engine.step().loads.tolist() == [1]
    engine.abort(1)
    assert engine.outcomes().reasons.tolist() == [3]
    assert engine.flags().tolist()[:3] == [0, 0, 1]  # nothing is unfinished, the place drains
    assert len(engine.state.blocks.free) == engine.state.blocks.usable - 1
    engine.end_transfer(1)
    assert len(engine.state.blocks.free) == engine.state.blocks.usable
    assert advance(engine, engine.flags()) == DONE


def test_stalled() -> None:
    engine = scheduler(engine="COMPLETION")
    engine.add_prompted(1, [5, 6, 7], 2, 9, 0, ())
    engine.pause(1)
    assert advance(engine) == IDLE
    assert advance(engine, engine.flags()) == IDLE  # a pause is pending
    with pytest.raises(ValueError, match="is not known"):
        engine.resume(2)
