"""Carrying out what the step policy decided: the step's frame and its arrays."""

from __future__ import annotations

from reference.decode import schedule_decode
from reference.records import DECODE, DONE, FAIL, IDLE, PREFILL, Step
from reference.requests import Frame, Row
from reference.state import State
from reference.step_arrays import make_step
from reference.verification import Verification


class Execution:
    """One rank's steps. ``step`` is the last one that was made; None before the first and while a vote is open."""

    def __init__(self, state: State, verification: Verification) -> None:
        self.state, self.verification = state, verification
        self.steps = 0
        self.step: Step | None = None
        self.fail_reason = ""
        self.agreed: int | None = None  # size of the group's graph, with padded dispatch

    def begin(self, record: list[int] | None) -> None:
        self.step = None
        self.state.begin()
        sizes = self.state.config.graph_sizes
        if self.state.config.padded:
            self.agreed = sizes[-1] if record is None else record[5]

    def prefill(self, rows: list[Row]) -> int:
        """``rows`` may be empty: the step of a rank that has nothing to do in it."""
        self.steps += 1
        self.step = make_step(self.state, step_id=self.steps, kind=1, rows=rows)
        self.state.frames.append(Frame(self.steps, False, tuple(rows)))
        return PREFILL

    def decode(self) -> int:
        """Without rows it is a dummy of padding only."""
        plan = schedule_decode(self.state, self.verification, self.agreed)
        self.steps += 1
        self.step = make_step(
            self.state,
            step_id=self.steps,
            kind=2,
            rows=plan.rows,
            graph_index=plan.graph_index,
            provisional=plan.provisional,
        )
        self.state.frames.append(Frame(self.steps, True, tuple(plan.rows), plan.provisional))
        return DECODE

    def idle(self) -> int:
        self.step = make_step(self.state, step_id=0, kind=0, rows=[])
        return IDLE

    def done(self) -> int:
        self.verification.done()
        self.step = make_step(self.state, step_id=0, kind=0, rows=[])
        return DONE

    def fail(self, reason: str) -> int:
        self.fail_reason = reason
        return FAIL

    def fail_with_error(self) -> int:
        """Some rank has said an error; it may be this one."""
        return self.fail(self.state.error or "another rank of the group has failed")

    def fail_stalled(self) -> int:
        return self.fail("stalled: requests wait, nothing can be scheduled and nothing is pending")
