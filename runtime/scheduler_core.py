"""The compiled scheduler as the runtime sees it: the interface of the extension module, and its constants."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]


class Action(IntEnum):
    """What the core asks the caller to do."""

    VOTE = 0
    PREFILL = 1
    DECODE = 2
    IDLE = 3
    DONE = 4
    FAIL = 5


class Reason(IntEnum):
    """Why a request ended."""

    STOP = 1
    LENGTH = 2
    ABORT = 3
    PREEMPTED = 4
    ERROR = 5


class StepView(Protocol):
    """One scheduled step; the arrays are borrowed and valid until the next ``begin_step``.

    Shapes and meaning: docs/formats.md, section 3.
    """

    step_id: int
    kind: int
    num_rows: int
    total_q: int
    graph: int
    ids: UInt64
    q_len: Int32
    k_len: Int32
    prefill_len: Int32
    slot: Int32
    remap: Int32
    samples: Int32
    block_table: Int32
    history: Int32
    input_ids: Int32
    positions: Int32
    row_of_token: Int32
    caps: Int32
    provisional: int
    clone_blocks: Int32
    clone_states: Int32
    zero_states: Int32
    ignored: UInt64
    preempted: UInt64
    loads: UInt64


class CommittedView(Protocol):
    """What a commit did, one entry per real row."""

    ids: UInt64
    emitted: Int32
    reasons: Int32


class OutcomesView(Protocol):
    """Requests that ended since the last call."""

    ids: UInt64
    reasons: Int32
    stop_tokens: Int32


class DecisionView(Protocol):
    """How the last action came about; -1 where nothing was voted on."""

    point: int
    want: int
    go: int
    scheduled: int
    decode_counter: int


class SchedulerCore(Protocol):
    """Methods of the compiled ``Scheduler``; it never blocks and never calls back.

    A call that breaks the contract is a ``ValueError`` with the values, and changes nothing.
    """

    def add(
        self,
        id: int,
        prompt: Int32,
        max_tokens: int,
        min_tokens: int,
        end_ids: Int32,
        checkpoints: Int32 = ...,
        image_spans: Int32 = ...,
    ) -> None:
        """Queue a request; ``ValueError`` if it can never fit."""

    def add_prompted(
        self, id: int, tokens: Int32, prompt_length: int, max_tokens: int, min_tokens: int, end_ids: Int32
    ) -> None:
        """Queue a request whose cache is computed elsewhere, for all its tokens but the last."""

    def fork(self, parent: int, children: UInt64) -> None:
        """New branches of a request whose prompt is computed; they share its cache until they write."""

    def pause(self, id: int) -> None:
        """Keep a request from being scheduled."""

    def resume(self, id: int) -> None:
        """Undo ``pause``."""

    def begin_transfer(self, id: int) -> None:
        """Its blocks and slot are read or written from outside from now on."""

    def end_transfer(self, id: int) -> None:
        """They no longer are. A loaded cache is complete, and what a request that ended still held is free."""

    def blocks(self, id: int) -> Int32:
        """A copy of its block table; ``ValueError`` while it has none."""

    def slot(self, id: int) -> int:
        """Its state slot; ``ValueError`` while it has none."""

    def abort(self, id: int) -> None:
        """End a request as aborted."""

    def finish(self, id: int, reason: int) -> None:
        """End a request for ``reason``."""

    def set_pending(self, pending: bool) -> None:
        """Whether something outside may add progress."""

    def set_error(self, message: str) -> None:
        """This rank cannot go on."""

    def set_cost_curve(self, milliseconds: NDArray[np.float64]) -> None:
        """Milliseconds of a decode step, one for each graph size; varlen verification needs it to begin a step."""

    def observe(self, graph: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        """What a decode step with ``rows`` real rows cost, on the graph of size ``graph``."""

    def split(self, caps: Int32, confidences: NDArray[np.uint16], total: int) -> Int32:
        """Queries of each row, int32 [rows], as the device computes them in a provisional step.

        ``caps`` is int32 [rows], ``confidences`` uint16 [rows, nextn]; ``total`` is the number of queries to give out.
        """

    def begin_step(self, flags: Int32 | None) -> int:
        """Start a step with the reduced record of the last one, None where none was exchanged; an ``Action``."""

    def vote(self) -> Int32:
        """This rank's vote, a record to reduce by MAX."""

    def resolve_vote(self, reduced: Int32) -> int:
        """Continue with the group's vote; an ``Action``."""

    def flags(self) -> Int32:
        """The record to publish after this step was scheduled."""

    def decision(self) -> DecisionView:
        """How the last action came about."""

    def step(self) -> StepView:
        """The step that was scheduled."""

    def commit(self, step_id: int, tokens: Int32, counts: Int32, confidences: NDArray[np.uint16]) -> CommittedView:
        """Deliver the oldest step's results, one row for each real row.

        ``tokens`` is int32 [rows, max_q], ``counts`` int32 [rows], ``confidences`` uint16 [rows, nextn].
        """

    def outcomes(self) -> OutcomesView:
        """Requests that ended since the last call."""

    def fingerprint(self) -> int:
        """A hash of the state that decides."""

    def check_invariants(self) -> None:
        """``RuntimeError`` naming a rule of the bookkeeping that does not hold."""

    def stats(self) -> dict[str, Any]:
        """Counters by name."""

    def fail_reason(self) -> str:
        """Why the last action was FAIL."""
