"""A group of ranks around real schedulers, a model of the device's memory, and the rules that every step must keep.

The fake model's token at position p of a request is a hash of both, so the expected output of every request is known
beforehand. The device's blocks and slots are dictionaries of tags: a read of something that was never written, that
was freed or that belongs to another request shows at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

VOTE, PREFILL, DECODE, IDLE, DONE, FAIL = range(6)
STOP, LENGTH, ABORT, PREEMPTED, ERROR = range(1, 6)
VOCABULARY = 97


def token_at(request: int, position: int) -> int:
    return (request * 7919 + position * 104729 + (request ^ position) * 31) % VOCABULARY


@dataclass
class Expected:
    """A request as its caller sees it."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int
    end_ids: list[int]
    output: list[int] = field(default_factory=list)
    reason: int = 0
    ended_by_caller: bool = False

    def full_output(self, request: int, max_model_len: int) -> tuple[list[int], int]:
        """What an engine without any limits of memory would produce."""
        output: list[int] = []
        while True:
            output.append(token_at(request, len(self.prompt) + len(output)))
            if len(output) >= self.min_tokens and output[-1] in self.end_ids:
                return output, STOP
            if len(output) == self.max_tokens or len(self.prompt) + len(output) == max_model_len:
                return output, LENGTH


@dataclass
class Group:
    """The step-type rule of a NORMAL engine, written once more: one counter for the whole group."""

    all_interval: int
    any_interval: int
    burst_limit: int
    decode_steps: int = 0
    burst: int = 0
    burst_began_any: bool = False
    idle: bool = True

    def point(self) -> str:
        in_burst = 0 < self.burst < self.burst_limit
        if (
            self.idle
            or (self.decode_steps and self.decode_steps % self.any_interval == 0)
            or (in_burst and self.burst_began_any)
        ):
            return "any"
        if (self.decode_steps and self.decode_steps % self.all_interval == 0) or in_burst:
            return "all"
        return "none"


class Rank:
    """One scheduler, its device memory and its requests."""

    def __init__(self, module: ModuleType) -> None:
        self.constants: dict[str, Any] = module.constants()
        self.scheduler = module.Scheduler()
        self.initial = self.scheduler.fingerprint()
        self.requests: dict[int, Expected] = {}
        self.blocks: dict[tuple[int, int], tuple[int, int]] = {}
        self.slots: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens seen)
        self.known: dict[int, int] = {}  # request -> tokens whose ids the device knows
        self.last_decode: list[int] = []
        self.uncommitted: list[tuple[int, np.ndarray, np.ndarray]] = []  # step id, tokens, counts

    def add(self, request: int, length: int, max_tokens: int, min_tokens: int, end_ids: list[int]) -> None:
        prompt = [token_at(request, p) for p in range(length)]
        arrays = np.array(prompt, np.int32), np.array(end_ids, np.int32)
        self.scheduler.add(request, arrays[0], max_tokens, min_tokens, arrays[1])
        self.requests[request] = Expected(prompt, max_tokens, min_tokens, end_ids)

    def prompt_token(self, request: int, position: int) -> int:
        """The id at ``position``, -1 before the sequence's start."""
        return self.requests[request].prompt[position] if position >= 0 else -1

    def execute(self, rng: random.Random) -> Any:
        """Run the current step on the device model and keep its results for ``commit_oldest``."""
        step = self.scheduler.step()
        tokens = np.full((step.num_rows, self.constants["kMaxQ"]), -1, np.int32)
        counts = np.zeros(step.num_rows, np.int32)
        for slot in step.zero_states:
            self.slots[int(slot)] = (0, 0)
        for row in range(step.num_rows):
            request, q_len = int(step.ids[row]), int(step.q_len[row])
            start = self.check_row(step, row)
            slot = int(step.slot[row])
            assert slot > 0, "I12: slot 0 is the dummy"
            if step.kind == 1 and start == 0:
                assert slot in step.zero_states, "a new sequence's slot is zeroed"
                self.slots[slot] = (request, 0)
            assert self.slots[slot][0] == request, "I12: the slot is this request's"
            self.access_blocks(step, row, request, start, q_len)
            if step.samples[row]:
                counts[row] = rng.randint(1, q_len) if step.kind == 2 else 1
                first = start + (1 if step.kind == 2 else q_len)
                tokens[row, : counts[row]] = [token_at(request, first + j) for j in range(counts[row])]
                self.known[request] = first + int(counts[row])
        if step.kind == 2:
            self.last_decode = [int(i) for i in step.ids[: step.num_rows]]
        self.uncommitted.append((step.step_id, tokens, counts))
        return step

    def check_row(self, step: Any, row: int) -> int:
        """Check the row's inputs; returns the position of its first query as the device knows it."""
        request, q_len, k_len = int(step.ids[row]), int(step.q_len[row]), int(step.k_len[row])
        offset = int(step.q_len[:row].sum())
        planned = k_len - q_len
        assert step.positions[offset : offset + q_len].tolist() == list(range(planned, k_len))
        assert (step.row_of_token[offset : offset + q_len] == row).all()
        remap = int(step.remap[row])
        assert remap == (self.last_decode.index(request) if step.kind == 2 and request in self.last_decode else -1)
        start = planned if step.kind == 1 else self.known[request] - 1
        host_knows = len(self.requests[request].prompt) + len(self.requests[request].output)
        for position, token in zip(range(planned, k_len), step.input_ids[offset : offset + q_len], strict=True):
            if position < host_knows:
                assert token == token_at(request, position)
            else:
                assert token == 0
                assert remap >= 0, "B3: a placeholder only where the device gathers the id"
        assert start <= planned, "lengths are optimistic"
        if not self.uncommitted:
            assert start == planned
            history = [token_at(request, p) if p >= 0 else -1 for p in range(start - 3, start)]
            assert step.history[row].tolist() == history
        return start

    def access_blocks(self, step: Any, row: int, request: int, start: int, q_len: int) -> None:
        size = self.constants["kBlockSize"]
        table = step.block_table[row]
        used = int((table != 0).sum())
        assert (table[:used] != 0).all(), "I9: block 0 is never allocated"
        assert used * size >= int(step.k_len[row]), "I13: blocks reach as far as the step may write"
        for position in range(start, start + q_len):
            self.blocks[int(table[position // size]), position % size] = (request, position)
        for position in range(start):
            found = self.blocks[int(table[position // size]), position % size]
            assert found == (request, position), f"I11: position {position} of {request} holds {found}"

    def commit_oldest(self) -> None:
        step_id, tokens, counts = self.uncommitted.pop(0)
        confidences = np.zeros((len(counts), self.constants["kNextn"]), np.uint16)
        result = self.scheduler.commit(step_id, tokens, counts, confidences)
        for row, request in enumerate(result.ids.tolist()):
            emitted = int(result.emitted[row])
            assert emitted <= counts[row]
            expected = self.requests[request]
            if emitted:
                assert expected.reason == 0, "I17: nothing after the end"
            expected.output += tokens[row, :emitted].tolist()
        self.collect()
        self.scheduler.check_invariants()

    def collect(self) -> None:
        ended = self.scheduler.outcomes()
        for request, reason, stop in zip(ended.ids.tolist(), ended.reasons.tolist(), ended.stop_tokens, strict=True):
            expected = self.requests[request]
            assert expected.reason == 0, "I20: exactly one terminal state"
            expected.reason = reason
            assert (stop == expected.output[-1]) if reason == STOP and not expected.ended_by_caller else (stop == -1)

    def finish(self, request: int, reason: int) -> None:
        if self.requests[request].reason:
            with pytest.raises(ValueError, match=f"request {request}: it was never added, or its end was reported"):
                self.scheduler.finish(request, reason)
            return
        self.requests[request].ended_by_caller = True
        self.scheduler.finish(request, reason)
        self.collect()

    def check_outputs(self) -> None:
        """I17 and I20: every request ended once, with the stream of an unlimited engine or a prefix of it."""
        for request, expected in self.requests.items():
            full, reason = expected.full_output(request, self.constants["kMaxModelLen"])
            if expected.reason in (STOP, LENGTH) and not expected.ended_by_caller:
                assert (expected.output, expected.reason) == (full, reason)
            else:
                assert expected.reason != 0
                assert expected.output == full[: len(expected.output)]


class World:
    """``ranks`` schedulers in lock step. ``deferred`` commits a decode step after the next one is scheduled."""

    def __init__(self, module: ModuleType, *, ranks: int = 1, deferred: bool = False, seed: int = 0) -> None:
        self.ranks = [Rank(module) for _ in range(ranks)]
        self.deferred = deferred
        self.rng = random.Random(seed)
        constants = self.ranks[0].constants
        self.group = Group(
            constants["kPrefillAttemptInterval"], constants["kPrefillAnyAttemptInterval"], constants["kPrefillBurst"]
        )
        self.flags: np.ndarray | None = None
        self.votes: list[np.ndarray] = []

    def step(self) -> int:
        """One begin_step with its votes on every rank, the step itself, and the commits that are due."""
        point = self.group.point()
        actions = [rank.scheduler.begin_step(self.flags) for rank in self.ranks]
        assert (actions[0] == VOTE) == (point != "none"), f"I7: the group is at a point '{point}'"
        self.votes = []
        while actions[0] == VOTE:
            assert actions == [VOTE] * len(self.ranks), "I1: every rank votes"
            reduced = np.max([rank.scheduler.vote() for rank in self.ranks], axis=0)
            self.votes.append(reduced)
            assert len(self.votes) <= 2, "I5: at most two rounds"
            actions = [rank.scheduler.resolve_vote(reduced) for rank in self.ranks]
        assert len(set(actions)) == 1, "I2: one step type"
        action = int(actions[0])
        assert action == self.predict(point), "I3, I4: the step type follows from the votes"
        if action in (PREFILL, DECODE):
            self.run_step(action)
        else:
            self.flags = None
            for rank in self.ranks:
                rank.collect()
                while rank.uncommitted:
                    rank.commit_oldest()
        return action

    def predict(self, point: str) -> int:
        """The step type by the rule, and the counters after it."""
        group = self.group
        if point != "none":
            want, decline, unfinished, decodable, pending, error = (int(v) for v in self.votes[0])
            if error:
                return FAIL
            if not unfinished and not pending:
                group.decode_steps, group.burst, group.idle = 0, 0, True
                return DONE
            go = bool(want) if point == "any" else not decline
            assert len(self.votes) == (2 if go else 1)
            if go and self.votes[1][0]:
                if group.burst == 0:
                    group.burst_began_any = point == "any"
                group.decode_steps, group.burst = 0, group.burst + 1
                return PREFILL
            if group.idle and not decodable:
                group.burst = 0
                return IDLE if want or pending else FAIL
        group.decode_steps, group.burst = group.decode_steps + 1, 0
        return DECODE

    def run_step(self, action: int) -> None:
        scheduled = 0
        for rank in self.ranks:
            step = rank.execute(self.rng)
            assert step.kind == action
            (check_prefill if action == PREFILL else check_decode)(step, rank.constants)
            scheduled += step.num_rows
            stats = rank.scheduler.stats()
            sequences = stats["running"] + stats["prompted"] + stats["partial"]
            assert sequences <= rank.constants["kMaxNumSeqs"], "I22"
            rank.collect()
            rank.scheduler.check_invariants()
        assert scheduled or action == DECODE, "a prompt step has a prompt somewhere"
        self.flags = np.max([rank.scheduler.flags() for rank in self.ranks], axis=0)
        self.group.idle = not self.flags[0]
        keep = 1 if self.deferred and action == DECODE else 0
        for rank in self.ranks:
            while len(rank.uncommitted) > keep:
                rank.commit_oldest()

    def drain(self, limit: int = 4000) -> int:
        """Step until DONE; returns the number of steps. I20: nothing is left behind."""
        for count in range(limit):
            action = self.step()
            assert action != FAIL, self.ranks[0].scheduler.fail_reason()
            if action == DONE:
                for rank in self.ranks:
                    check_drained(rank)
                return count
        raise AssertionError("the group does not come to an end")


def check_drained(rank: Rank) -> None:
    stats = rank.scheduler.stats()
    assert stats["free_blocks"] == rank.constants["kNumBlocks"] - 1
    assert stats["free_slots"] == rank.constants["kNumSlots"] - 1
    assert rank.scheduler.fingerprint() == rank.initial
    rank.check_outputs()


def check_prefill(step: Any, constants: dict[str, Any]) -> None:
    """I19: the three limits, and nobody joins after a cut."""
    assert step.total_q == step.q_len.sum() <= constants["kMaxNumBatchedTokens"]
    assert step.num_rows == len(step.ids) <= constants["kMaxNumPrompts"]
    assert step.k_len.sum() <= constants["kPrefillMaxSumSeqlenK"]
    assert (step.samples[:-1] == 1).all()
    cut = step.q_len[step.samples == 0]
    assert (cut % (2 * constants["kCpSize"]) == 0).all() or constants["kCpSize"] == 1
    assert (step.q_len > 0).all()
    assert step.graph == 0


def check_decode(step: Any, constants: dict[str, Any]) -> None:
    """I14 and padding: the smallest graph, its rows, and padding that points at block 0 and slot 0."""
    rows, graph = step.num_rows, step.graph
    assert graph == min(size for size in constants["kGraphSizes"] if size >= step.total_q)
    assert len(step.ids) == constants["kGraphRows"][constants["kGraphSizes"].index(graph)]
    assert len(step.input_ids) == len(step.positions) == len(step.row_of_token) == graph
    assert step.q_len[:rows].sum() == step.total_q
    assert step.q_len.sum() == graph
    assert ((step.q_len[:rows] >= 1) & (step.q_len <= constants["kMaxQ"])[:rows]).all()
    assert step.q_len.max() <= constants["kMaxQ"]
    for padding in (step.ids, step.slot, step.block_table, step.samples):
        assert not padding[rows:].any()
    assert (step.k_len == step.q_len)[rows:].all()
    assert not step.input_ids[step.total_q :].any()
    assert (step.remap[rows:] == -1).all()
    lengths = step.k_len[:rows] - step.q_len[:rows]
    if not (step.remap[:rows] >= 0).any():
        assert (np.diff(lengths) <= 0).all(), "the longest first"
