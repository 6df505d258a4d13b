"""A group of ranks around real schedulers, and the rules that every step of the group must keep."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from scheduler_device import ABORT, ERROR, LENGTH, PREEMPTED, STOP, token_at
from scheduler_rank import Rank

VOTE, PREFILL, DECODE, IDLE, DONE, FAIL = range(6)
DECODABLE, UNFINISHED, PENDING, FAILED, WORK, GRAPH = range(6)  # of the published record
__all__ = [
    "ABORT", "DECODE", "DONE", "ERROR", "FAIL", "IDLE", "LENGTH", "PREEMPTED", "PREFILL", "STOP", "VOTE", "Greedy",
    "Modest", "Rank", "World", "token_at",
]  # fmt: skip


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


class Greedy(random.Random):
    """Every draft is accepted."""

    def randint(self, a: int, b: int) -> int:
        return b


class Modest(random.Random):
    """No draft is accepted."""

    def randint(self, a: int, b: int) -> int:
        return a


class World:
    """``ranks`` schedulers in lock step. ``deferred`` commits a decode step after the next one is scheduled.

    ``loads``: caches of admitted requests are filled behind the step that admitted them; otherwise the test does it.
    """

    def __init__(
        self, module: ModuleType, *, ranks: int = 1, deferred: bool = False, seed: int = 0, loads: bool = True
    ) -> None:
        self.ranks = [Rank(module) for _ in range(ranks)]
        self.deferred, self.loads = deferred, loads
        self.rng = random.Random(seed)
        self.constants = self.ranks[0].constants
        self.votes_on = self.constants["kEngineType"] == "NORMAL"
        names = ("kPrefillAttemptInterval", "kPrefillAnyAttemptInterval", "kPrefillBurst")
        self.group = Group(*(self.constants.get(name, 1) for name in names))
        self.flags: np.ndarray | None = None
        self.votes: list[np.ndarray] = []

    def step(self, *, commits: bool = True) -> int:
        """One begin_step with its votes on every rank, the step itself, and the commits that are due, or none."""
        failed = self.flags is not None and bool(self.flags[FAILED])
        point = self.group.point() if self.votes_on and not failed else "none"
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
        expected = FAIL if failed else self.predict(point) if self.votes_on else self.follow()
        assert action == expected, "I3, I4: the step type follows from the votes"
        if action in (PREFILL, DECODE):
            self.run_step(action, commits)
        else:
            self.no_step(action)
        if self.loads:
            for rank in self.ranks:
                rank.fill_loads()
        return action

    def predict(self, point: str) -> int:
        """The step type of a NORMAL engine by the rule, and the counters after it."""
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

    def follow(self) -> int:
        """The step type of an engine that does not vote."""
        if self.flags is None:
            return IDLE
        if self.flags[WORK]:
            return PREFILL if self.constants["kEngineType"] == "PROMPT" else DECODE
        if self.flags[PENDING]:
            return IDLE
        return FAIL if self.flags[UNFINISHED] else DONE

    def run_step(self, action: int, commits: bool) -> None:
        agreed = int(self.flags[GRAPH]) if self.flags is not None else self.constants["kMaxTotalQ"]
        scheduled = 0
        for rank in self.ranks:
            step = rank.execute(self.rng)
            assert step.kind == action
            if action == PREFILL:
                check_prefill(step, rank.constants)
            else:
                check_decode(step, rank.constants, agreed)
            scheduled += step.num_rows
            stats = rank.scheduler.stats()
            sequences = stats["running"] + stats["prompted"] + stats["partial"] + stats["loading"]
            assert sequences <= rank.constants["kMaxNumSeqs"], "I22"
            rank.collect()
            rank.scheduler.check_invariants()
        assert scheduled or action == DECODE or not self.votes_on, "a prompt step has a prompt somewhere"
        self.flags = np.max([rank.scheduler.flags() for rank in self.ranks], axis=0)
        self.group.idle = not self.flags[DECODABLE]
        keep = 1 if self.deferred and action == DECODE else 0
        for rank in self.ranks:
            while commits and len(rank.uncommitted) > keep:
                rank.commit_oldest()

    def no_step(self, action: int) -> None:
        for rank in self.ranks:
            rank.collect()
            rank.loads += rank.scheduler.step().loads.tolist()
        exchanged = action == IDLE and not self.votes_on
        self.flags = np.max([rank.scheduler.flags() for rank in self.ranks], axis=0) if exchanged else None
        for rank in self.ranks:
            while rank.uncommitted:
                rank.commit_oldest()

    def until(self, wanted: int, limit: int = 1000) -> int:
        """Step until an action is ``wanted``; returns how many steps came before it."""
        for count in range(limit):
            if self.step() == wanted:
                return count
        raise AssertionError(f"no action {wanted} in {limit} steps")

    def drain(self, limit: int = 4000) -> int:
        """Step until DONE; returns the number of steps. I20: nothing is left behind."""
        for count in range(limit):
            action = self.step()
            assert action != FAIL, self.ranks[0].scheduler.fail_reason()
            if action == DONE:
                for rank in self.ranks:
                    rank.check_drained()
                return count
        raise AssertionError("the group does not come to an end")


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


def check_decode(step: Any, constants: dict[str, Any], agreed: int) -> None:
    """I14, B14, B24: the smallest graph, or the agreed one; padding points at block 0 and slot 0."""
    rows, graph = step.num_rows, step.graph
    smallest = min(size for size in constants["kGraphSizes"] if size >= step.total_q)
    assert graph == (agreed if constants.get("kPaddedDispatch") else smallest)
    assert len(step.ids) == constants["kGraphRows"][constants["kGraphSizes"].index(graph)]
    assert len(step.input_ids) == len(step.positions) == len(step.row_of_token) == graph
    assert step.q_len[:rows].sum() == step.total_q <= graph
    assert step.q_len.sum() == graph
    assert (step.q_len[:rows] >= 1).all()
    assert (step.q_len[:rows] <= 1 + step.caps).all()
    assert step.q_len.max() <= constants["kMaxQ"]
    for padding in (step.ids, step.slot, step.block_table, step.samples):
        assert not padding[rows:].any()
    assert (step.k_len == step.q_len)[rows:].all()
    assert not step.input_ids[step.total_q :].any()
    assert (step.remap[rows:] == -1).all()
