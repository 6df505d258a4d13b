"""Which step comes next, for each engine type (docs/scheduler.md, sections 2 and 3)."""

from __future__ import annotations

from typing import Protocol

from reference.execution import Execution
from reference.prefill import admit_incoming, schedule_prefill, wants_prefill
from reference.records import POINT_ALL, POINT_ANY, POINT_NONE, VOTE, Decision
from reference.requests import Row

Record = list[int]
DECODABLE, UNFINISHED, PENDING, ERROR, WORK, GRAPH = range(6)


class StepPolicy(Protocol):
    """What the scheduler asks of an engine type."""

    decision: Decision
    vote: Record | None  # while one is open

    def begin(self, record: Record | None) -> int:
        """The action of a step; ``record`` is the group's last one."""
        ...

    def resolve(self, reduced: Record) -> int: ...

    def work(self) -> int:
        """The record's ``work``."""
        ...


class NormalSteps:
    """Prefill where two rounds of votes agree on it, else decode."""

    def __init__(self, execution: Execution) -> None:
        self.execution, self.state = execution, execution.state
        self.decode_steps = 0  # c
        self.prefill_steps = 0  # b
        self.burst_kind = POINT_NONE
        self.group_idle = True
        self.decision = Decision()
        self.vote: Record | None = None
        self.first_round: Record | None = None  # reduced, while the second is open
        self.rows: list[Row] = []  # scheduled before the second round

    def begin(self, record: Record | None) -> int:
        point = POINT_NONE
        if record is not None:
            self.group_idle = record[DECODABLE] == 0
            if record[ERROR]:
                self.decision = Decision(decode_counter=self.decode_steps)
                return self.execution.fail_with_error()
        admit_incoming(self.state)
        point = self._point()
        self.decision = Decision(point, decode_counter=self.decode_steps)
        if point == POINT_NONE:
            return self._decode()
        want, state = wants_prefill(self.state), self.state
        flags = (state.unfinished(), state.decodable(), state.pending(), bool(state.error))
        self.vote = [int(want), 1 - want, *map(int, flags)]
        self.decision.want = int(want)
        return VOTE

    def _point(self) -> int:
        config, steps = self.state.config, self.decode_steps
        in_burst = 0 < self.prefill_steps < config.burst
        if self.group_idle or (steps and steps % config.any_interval == 0):
            return POINT_ANY
        if in_burst and self.burst_kind == POINT_ANY:
            return POINT_ANY
        return POINT_ALL if in_burst or (steps and steps % config.all_interval == 0) else POINT_NONE

    def resolve(self, reduced: Record) -> int:
        self.vote = None
        if self.first_round is not None:
            first, self.first_round = self.first_round, None
            return self._prefill() if reduced[0] else self._no_prefill(first)
        want, not_all, unfinished, _, pending, error = reduced
        if error:
            return self.execution.fail_with_error()
        if not unfinished and not pending:
            self.decode_steps, self.prefill_steps, self.group_idle = 0, 0, True
            return self.execution.done()
        self.decision.go = want if self.decision.point == POINT_ANY else 1 - not_all
        if not self.decision.go:
            return self._no_prefill(reduced)
        self.rows = schedule_prefill(self.state)
        self.decision.scheduled = int(bool(self.rows))
        self.first_round, self.vote = reduced, [self.decision.scheduled, 0, 0, 0, 0, 0]
        return VOTE

    def _prefill(self) -> int:
        if self.prefill_steps == 0:
            self.burst_kind = self.decision.point
        self.decode_steps, self.prefill_steps = 0, self.prefill_steps + 1
        return self.execution.prefill(self.rows)

    def _no_prefill(self, first: Record) -> int:
        want, _, _, decodable, pending, _ = first
        if not self.group_idle or decodable:
            return self._decode()
        self.prefill_steps = 0
        return self.execution.idle() if want or pending else self.execution.fail_stalled()

    def _decode(self) -> int:
        self.decode_steps, self.prefill_steps = self.decode_steps + 1, 0
        return self.execution.decode()

    def work(self) -> int:
        return 0


class OneKindSteps:
    """Engines with one kind of step do not vote: the record says whether any rank has work."""

    def __init__(self, execution: Execution) -> None:
        self.execution, self.state = execution, execution.state
        self.decision = Decision()
        self.vote: Record | None = None

    def begin(self, record: Record | None) -> int:
        if record is not None and record[ERROR]:
            return self.execution.fail_with_error()
        admit_incoming(self.state)
        if record is None:
            return self.execution.idle()
        if record[WORK]:
            return self._run()
        if not record[UNFINISHED] and not record[PENDING]:
            return self.execution.done()
        return self.execution.idle() if record[PENDING] else self.execution.fail_stalled()

    def resolve(self, reduced: Record) -> int:
        raise ValueError("resolve_vote: this engine has no votes")

    def _run(self) -> int:
        raise NotImplementedError

    def work(self) -> int:
        raise NotImplementedError


class PromptSteps(OneKindSteps):
    """Prefill only."""

    def _run(self) -> int:
        return self.execution.prefill(schedule_prefill(self.state))

    def work(self) -> int:
        return int(wants_prefill(self.state))


class CompletionSteps(OneKindSteps):
    """Decode only."""

    def _run(self) -> int:
        return self.execution.decode()

    def work(self) -> int:
        return int(self.state.decodable())
