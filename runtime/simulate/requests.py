"""All requests of a simulation as columns: what the caller, the host and the modelled device know of each.

Index 0 is padding. A request's token and its shadow tag at a position are halves of one hash of (request, position), so
the expected output of every request is known beforehand; a fork has its parent's below the position where it branched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Int32, Reason
from deepinfer_gen.runtime.simulate.mixing import GOLDEN, Int64, UInt64, below, key_of, mix, threshold_of
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest, names_of

_TOKEN_SHIFT = np.uint64(33)
_ODD = np.uint64(1)
_CONFIDENCE_STEPS = np.iinfo(np.uint16).max
NEVER = np.iinfo(np.int32).max
FUTURE, LIVE, ENDED = range(3)
"""Where a request is in its life, as its caller sees it."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tags of some positions of each row, [rows, columns] from the row's ``base`` on; those below 0 mean nothing."""

    base: Int64
    tags: UInt64

    def at(self, rows: Int64, positions: Int64) -> UInt64:
        """The tags at positions of rows, which lie in the window."""
        found: UInt64 = self.tags[rows, positions - self.base[rows]]
        return found


class Requests:
    """Columns over all requests, by number. ``seed`` decides every token and every accepted draft."""

    def __init__(
        self, workload: Sequence[WorkloadRequest], *, seed: int, nextn: int, max_model_len: int, decodes: bool = True
    ) -> None:
        size = len(workload) + 1
        self.names = names_of(workload)
        self.nextn = nextn
        self.rank = self._column(size)
        self.key = np.zeros(size, np.uint64)
        self.choice_key = np.zeros(size, np.uint64)
        self.threshold = np.zeros(size, np.uint64)
        self.confidence = np.zeros(size, np.uint16)
        self.prompt_len = self._column(size)
        self.length_limit = self._column(size)
        self.end_at = self._column(size, NEVER)  # the length at which an end token makes it stop
        self.arrival = self._column(size)
        self.parent = self._column(size)
        self.branch_at = self._column(size)  # below this position it has its parent's tokens
        self.status = self._column(size)
        self.reason = self._column(size)
        self.committed = self._column(size)  # tokens that the host knows
        self.known = self._column(size)  # tokens that the device knows, the newest one included
        self.rounds = self._column(size)  # verify rounds so far
        self.drafted = self._column(size)  # drafts that its prefill step delivered and no step has used
        self.flying = self._column(size)  # uncommitted decode frames that it is in
        self.occupancy = self._column(size)  # counts its preemptions: rows of an earlier occupancy are dead
        self.decode_number = self._column(size, -1)  # the last decode step of its rank that it was in
        self.row = self._column(size, -1)  # its row there
        self.prefilled = np.zeros(size, np.bool_)  # its cache is complete, or will be when what is scheduled has run
        self.first_chunk = self._column(size, -1)  # the step that scheduled its first chunk
        self.first_token = self._column(size, -1)  # the step that yielded its first token
        self.drafts = np.zeros((size, nextn), np.int32)
        for request in workload:
            n = request.number
            self.rank[n] = request.rank
            self.key[n] = key_of(seed, "token", request.id)
            self.choice_key[n] = key_of(seed, "accept", request.id)
            self.threshold[n] = threshold_of(request.accept_rate)
            self.confidence[n] = round(request.accept_rate * _CONFIDENCE_STEPS)
            self.prompt_len[n] = request.prompt_len
            most = request.max_tokens if decodes else 1
            self.length_limit[n] = min(request.prompt_len + most, max_model_len)
            self.arrival[n] = request.arrival_step
            self.parent[n] = request.parent
        self._offsets = np.arange(max(nextn, 1), dtype=np.uint64)[:nextn]
        self._branches = False

    @staticmethod
    def _column(size: int, value: int = 0) -> Int64:
        return np.full(size, value, np.int64)

    def branch(self, child: int, parent: int) -> None:
        """``child`` starts as a copy of ``parent``, from its committed tokens."""
        self._branches = True
        self.branch_at[child] = self.committed[parent]
        self.committed[child] = self.known[child] = self.committed[parent]
        self.prefilled[child] = True

    def tags(self, numbers: Int64, positions: Int64) -> UInt64:
        """What the cache holds of each request at each position; never 0. Any equal shapes."""
        if self._branches:
            numbers, own = numbers.copy(), np.maximum(positions, 0)
            while (above := own < self.branch_at[numbers]).any():
                numbers[above] = self.parent[numbers[above]]
        return mix(self.key[numbers] + positions.astype(np.uint64) * GOLDEN) | _ODD

    def window(self, numbers: Int64, before: int, columns: int) -> Window:
        """What each of ``numbers`` holds from ``before`` positions below its newest token on."""
        base = self.known[numbers] - 1 - before
        positions = base[:, None] + np.arange(columns)
        rows = np.repeat(numbers, columns).reshape(positions.shape)
        return Window(base, self.tags(rows, positions))

    @staticmethod
    def tokens_of(tags: UInt64) -> Int32:
        """The token ids that belong to tags."""
        return (tags >> _TOKEN_SHIFT).astype(np.int32)

    def tokens(self, number: int, end: int) -> Int32:
        """The first ``end`` tokens of a request."""
        positions = np.arange(end, dtype=np.int64)
        return self.tokens_of(self.tags(np.full(end, number, np.int64), positions))

    def right_drafts(self, numbers: Int64) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Which of the drafts of each request's present verify round are right, [rows, nextn]."""
        rounds = self.rounds[numbers].astype(np.uint64)[:, None] * np.uint64(max(self.nextn, 1))
        words = mix(self.choice_key[numbers][:, None] + (rounds + self._offsets) * GOLDEN)
        return below(words, self.threshold[numbers][:, None])

    def end(self, number: int, reason: int) -> None:
        """It ended, in the scheduler's view or before it ever came there."""
        self.status[number] = ENDED
        self.reason[number] = reason

    def live(self, rank: int) -> list[int]:
        """The requests of a rank that came and did not end."""
        return [int(n) for n in np.flatnonzero((self.status == LIVE) & (self.rank == rank))]

    def ended_as(self, reason: Reason) -> int:
        """How many ended for ``reason``."""
        return int((self.reason[self.status == ENDED] == reason).sum())
