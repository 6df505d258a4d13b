"""The step-type rules (docs/scheduler.md, section 3) once more: one state for the whole group, checked against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from deepinfer_gen.runtime.scheduler_core import Action, Int32
from deepinfer_gen.runtime.simulate.actions import DECODE, DONE, FAIL, IDLE, PREFILL

ALL, ANY = 1, 2
"""The points at which a group votes, as ``decision()`` names them; 0 is none."""


class StepRule(Protocol):
    """What the group must do next."""

    decode_counter: int

    def begin(self, flags: Int32 | None) -> int:
        """The point that a step begins at, by the reduced record of the last one."""

    def end(self, flags: Int32 | None, votes: Sequence[Int32]) -> Action:
        """The action that the reduced votes lead to."""


def step_rule(constants: dict[str, Any]) -> StepRule:
    """The rule of an engine's type."""
    return NormalRule(constants) if constants["kEngineType"] == "NORMAL" else HalfRule(constants)


class NormalRule:
    """Votes at points that a count of decode steps and bursts decide."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self._all: int = constants["kPrefillAttemptInterval"]
        self._any: int = constants["kPrefillAnyAttemptInterval"]
        self._burst_limit: int = constants["kPrefillBurst"]
        self.decode_counter = 0
        self._point = 0
        self._burst = 0
        self._burst_began = 0
        self._idle = True

    def begin(self, flags: Int32 | None) -> int:
        """None (0), ALL or ANY."""
        if flags is not None:
            self._idle = not flags[0]
        count = self.decode_counter
        in_burst = 0 < self._burst < self._burst_limit
        if self._idle or (count and count % self._any == 0) or (in_burst and self._burst_began == ANY):
            self._point = ANY
        else:
            self._point = ALL if (count and count % self._all == 0) or in_burst else 0
        if flags is not None and flags[3]:
            self._point = 0
        return self._point

    def end(self, flags: Int32 | None, votes: Sequence[Int32]) -> Action:
        """Moves the counters too."""
        if flags is not None and flags[3]:
            return FAIL
        if self._point:
            want, decline, unfinished, decodable, pending, error = (int(v) for v in votes[0])
            if error:
                return FAIL
            if not unfinished and not pending:
                self.decode_counter, self._burst, self._idle = 0, 0, True
                return DONE
            go = bool(want) if self._point == ANY else not decline
            if go and len(votes) > 1 and votes[1][0]:
                self._burst_began = self._burst_began if self._burst else self._point
                self.decode_counter, self._burst = 0, self._burst + 1
                return PREFILL
            if self._idle and not decodable:
                self._burst = 0
                return IDLE if want or pending else FAIL
        self.decode_counter, self._burst = self.decode_counter + 1, 0
        return DECODE


class HalfRule:
    """PROMPT and COMPLETION engines: the record says whether there is work, and nobody votes."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self._step = PREFILL if constants["kEngineType"] == "PROMPT" else DECODE
        self.decode_counter = 0

    def begin(self, flags: Int32 | None) -> int:
        """Never a point."""
        return 0

    def end(self, flags: Int32 | None, votes: Sequence[Int32]) -> Action:
        """By the record alone."""
        if flags is None:
            return IDLE
        _, unfinished, pending, error, work, _ = (int(v) for v in flags)
        if error:
            return FAIL
        if work:
            return self._step
        if not unfinished and not pending:
            return DONE
        return IDLE if pending else FAIL
