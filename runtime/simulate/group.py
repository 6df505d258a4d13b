"""The group: ranks in lock step, votes and records reduced by MAX, results delivered when the Plan says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Action, Int32
from deepinfer_gen.runtime.simulate.actions import DECODE, DONE, FAIL, IDLE, PREFILL, VOTE
from deepinfer_gen.runtime.simulate.caller import Caller
from deepinfer_gen.runtime.simulate.cost import StepCost
from deepinfer_gen.runtime.simulate.fault_plan import FaultEvent
from deepinfer_gen.runtime.simulate.rank import Frame, Rank
from deepinfer_gen.runtime.simulate.requests import Requests
from deepinfer_gen.runtime.simulate.step_rule import step_rule
from deepinfer_gen.runtime.simulate.trace import Observer
from deepinfer_gen.runtime.simulate.violation import ViolationError, violated
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

T = TypeVar("T")
_RUNS = (PREFILL, DECODE)
_POOLS_EVERY = 8
"""Steps between two comparisons of the pools with the tables, which cost as much as several steps."""
_STUCK_AFTER = 3
"""Idle steps in a row after which a group that expects nothing more is not coming to an end."""
_MOST_DUMMIES = 2


@dataclass(frozen=True, slots=True)
class End:
    """How a simulation ended: ``done``, ``steps`` (as many as asked for), ``failed`` or ``waits`` (for ever)."""

    how: str
    steps: int
    message: str = ""


class Group:
    """``run`` is the whole simulation; every step that all ranks have committed is shown to the observers."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        requests: Requests,
        workload: Sequence[WorkloadRequest],
        plan: Sequence[FaultEvent],
        cost: StepCost,
        observers: Sequence[Observer],
        *,
        zos: bool,
        fingerprints: bool,
    ) -> None:
        self._ranks = ranks
        self._cost = cost
        self._observers = observers
        self._zos = zos
        self._fingerprints = fingerprints
        self._rule = step_rule(ranks[0].constants)
        self._votes = ranks[0].constants["kEngineType"] == "NORMAL"
        self.caller = Caller(ranks, requests, workload, plan, self._drain)
        self._record: Int32 | None = None
        self._published = False
        self._open: list[list[Frame | None]] = []  # steps that not all ranks have committed, oldest first
        self._shown = 0
        self._ready: list[Frame] = []  # the last step that all ranks have committed
        self._idle_in_a_row = 0
        self._dummies_in_a_row = 0
        cost.announce(ranks)

    def run(self, limit: int | None) -> End:
        """Step until the group is done, or ``limit`` steps. Raises ``ViolationError``."""
        try:
            return self._run(limit)
        finally:
            # What ended behind the last step has no other line.
            for rank, frame in zip(self._ranks, self._ready, strict=False):
                frame.finished |= rank.ended
            self._show()

    def _run(self, limit: int | None) -> End:
        step = 0
        while limit is None or step < limit:
            try:
                end = self._step(step)
            except ViolationError as fault:
                raise fault.at(step, -1) from None
            if end is not None:
                return end
            step += 1
        self._deliver_all()
        return End("steps", step)

    def _step(self, step: int) -> End | None:
        self.caller.begin(step)
        flags = self._take_record()
        action, agreed_graph = self._decide(step, flags), self._agreed_graph(flags)
        if action == FAIL:
            return self._failed(step)
        if action == DONE:
            self._deliver_all()
            self.caller.settle()
            for rank in self._ranks:
                _on(rank, lambda r: r.check_drained())
            return End("done", step)
        self._open.append([None] * len(self._ranks))
        frames = [_on(rank, lambda r: r.schedule(step, action, agreed_graph)) for rank in self._ranks]
        self._check_group(frames)
        self.caller.scheduled()
        self.caller.during(step, "scheduled")
        self._publish(action)
        self.caller.during(step, "commit")
        self._cost.charge(self._ranks, frames)
        for rank in self._ranks:
            late = action == DECODE and (self._zos or rank.index in self.caller.late)
            self._commit_to(rank, 1 if late else 0)
        self.caller.end()
        self.caller.during(step, "end")
        if step % _POOLS_EVERY == 0:
            for rank in self._ranks:
                _on(rank, lambda r: r.check_pools())
        return self._stuck(step, action)

    def _decide(self, step: int, flags: Int32 | None) -> Action:
        """begin_step and the voting rounds on every rank; all must come to the action that the rule gives."""
        point = self._rule.begin(flags)
        counter = self._rule.decode_counter
        actions = [rank.begin(flags) for rank in self._ranks]
        votes: list[Int32] = []
        while VOTE in actions:
            if len(votes) == 2 or not point:
                violated("I5", f"a vote {'after two rounds' if votes else 'at no attempt point'}, c = {counter}")
            self._check_equal("I1", actions)
            self.caller.during(step, "attempt" if votes else "vote")
            votes.append(_reduced([rank.scheduler.vote() for rank in self._ranks]))
            actions = [rank.scheduler.resolve_vote(votes[-1]) for rank in self._ranks]
        self._check_equal("I2", actions)
        expected = self._rule.end(flags, votes)
        if actions[0] != expected:
            name, wanted = Action(actions[0]).name, expected.name
            shown = f"c = {counter}, votes {[vote.tolist() for vote in votes]}"
            violated(("I2", "I3", "I4")[point], f"the group does {name}, and the rule gives {wanted} ({shown})")
        return Action(actions[0])

    def _check_equal(self, prop: str, actions: Sequence[int]) -> None:
        if len(set(actions)) > 1:
            shown = ", ".join(f"rank {i}: {Action(a).name}" for i, a in enumerate(actions))
            violated(prop, f"the ranks come to different actions: {shown}")

    def _check_group(self, frames: Sequence[Frame]) -> None:
        counters = [frame.decision.decode_counter for frame in frames]
        if len(set(counters)) > 1:
            violated("I7", f"decode counters differ: {counters}")
        rows = sum(len(frame.numbers) for frame in frames)
        if frames[0].action == PREFILL and not rows and self._votes:
            violated("I8", "a prefill step has no prompt on any rank")
        dummy = frames[0].action == DECODE and not rows
        wanted = any(frame.decision.want == 1 for frame in frames)
        self._dummies_in_a_row = self._dummies_in_a_row + 1 if dummy and wanted else 0
        if self._dummies_in_a_row > _MOST_DUMMIES:
            violated("I21", f"{self._dummies_in_a_row} dummy forwards in a row while a rank wants to prefill")

    def _take_record(self) -> Int32 | None:
        """The reduced record of the last step. One rank takes its own when it needs it, so it is the newest."""
        if not self._published:
            return None
        if len(self._ranks) == 1:
            return self._ranks[0].scheduler.flags()
        return self._record

    def _publish(self, action: Action) -> None:
        self._published = action in _RUNS or not self._votes  # a vote is an exchange too
        if self._published and len(self._ranks) > 1:
            self._record = _reduced([rank.scheduler.flags() for rank in self._ranks])

    def _agreed_graph(self, flags: Int32 | None) -> int:
        if flags is not None and flags[-1] > 0:
            return int(flags[-1])
        return int(max(self._ranks[0].constants.get("kGraphSizes", ()), default=0))

    def _commit_to(self, rank: Rank, keep: int) -> None:
        while len(rank.frames) > keep:
            frame = _on(rank, lambda r: r.commit())
            frame.stats = rank.scheduler.stats()
            if self._fingerprints:
                frame.fingerprint = rank.scheduler.fingerprint()
            self._open[frame.step - self._shown][rank.index] = frame
        while self._open and all(frame is not None for frame in self._open[0]):
            frames = [frame for frame in self._open.pop(0) if frame is not None]
            self._shown += 1
            self._show()
            self._ready = frames

    def _show(self) -> None:
        if self._ready:
            for observer in self._observers:
                observer.take(self._ready)
        self._ready = []

    def _drain(self, rank: Rank) -> None:
        self._commit_to(rank, 0)

    def _deliver_all(self) -> None:
        for rank in self._ranks:
            self._drain(rank)

    def _failed(self, step: int) -> End:
        reasons = [rank.scheduler.fail_reason() for rank in self._ranks]
        if not self.caller.injected_error:
            violated("I20", f"the group stopped: {reasons[0]}")
        return End("failed", step, next((r for r in reasons if "another rank" not in r), reasons[0]))

    def _stuck(self, step: int, action: Action) -> End | None:
        """A group that idles and expects nothing waits for ever; only what is paused or held may do so."""
        self._idle_in_a_row = self._idle_in_a_row + 1 if action == IDLE and not self.caller.has_more else 0
        if self._idle_in_a_row < _STUCK_AFTER:
            return None
        return End("waits", step + 1, "the requests left are paused, or their transfers are never ended")


def _reduced(records: Sequence[Int32]) -> Int32:
    return records[0] if len(records) == 1 else np.maximum.reduce(records)


def _on(rank: Rank, call: Callable[[Rank], T]) -> T:
    """What ``call`` returns; a violation in it is this rank's."""
    try:
        return call(rank)
    except ViolationError as fault:
        raise fault.at(-1, rank.index) from None
