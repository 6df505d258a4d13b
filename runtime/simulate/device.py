"""The modelled device of one rank: which drafts are right, which tokens come out, what is written where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_gen.runtime.scheduler_core import Int32, StepView
from deepinfer_gen.runtime.simulate.memory import DeviceMemory
from deepinfer_gen.runtime.simulate.mixing import Int64
from deepinfer_gen.runtime.simulate.requests import Requests, Window

_REJECTED = np.uint64(2)
"""Turns a right tag into that of a wrong draft."""
Split = Callable[[Int32, NDArray[np.uint16], int], Int32]


@dataclass(frozen=True, slots=True)
class Results:
    """What a step computed, one entry per real row. ``first`` is the position of the row's first new token, ``q`` and
    ``k`` what the device really executed, which under optimistic lengths is known to it alone."""

    tokens: Int32
    counts: Int32
    confidences: NDArray[np.uint16]
    first: Int64
    q: Int64
    k: Int64


class Device:
    """Executes scheduled steps of one rank. ``split`` is the scheduler's, for steps whose lengths are provisional."""

    def __init__(self, requests: Requests, memory: DeviceMemory, constants: dict[str, Any], split: Split) -> None:
        self._requests = requests
        self.memory = memory
        self._split = split
        self._max_q: int = constants["kMaxQ"]
        self._columns = np.arange(self._max_q)
        self._fresh: list[int] = []  # what was prefilled since the last decode step, and has drafts for the next

    def prefill(self, step: StepView, numbers: Int64) -> Results:
        """Copies, then the forward pass and the sampler; ``numbers`` are the real rows' requests."""
        requests, rows = self._requests, len(numbers)
        self.memory.copy(step.clone_blocks, step.clone_states, step.zero_states)
        q = step.q_len[:rows].astype(np.int64)
        k = step.k_len[:rows].astype(np.int64)
        table, slots = step.block_table[:rows], step.slot[:rows]
        self.memory.read(numbers, table, slots, k - q)
        row_of, positions = _tokens(k - q, q)
        tags = requests.tags(numbers[row_of], positions)
        self.memory.write(table, slots, row_of, positions, tags, k)
        samples = step.samples[:rows] != 0
        sampling = numbers[samples]
        requests.known[sampling] = k[samples] + 1
        tokens = np.full((rows, self._max_q), -1, np.int32)
        tokens[:, 0] = requests.tokens_of(requests.tags(numbers, k))
        if requests.nextn:
            drafts = self._new_drafts(numbers, k + 1)
            tokens[:, 1:] = drafts
            requests.drafts[sampling] = drafts[samples]
            requests.drafted[sampling] = requests.nextn
            self._fresh += sampling.tolist()
        return Results(tokens, samples.astype(np.int32), self._confidences(numbers), k, q, k)

    def _new_drafts(self, numbers: Int64, first: Int64) -> Int32:
        """Draft tokens from position ``first`` on: what will be right has the right id, the others a wrong one."""
        positions = first[:, None] + np.arange(self._requests.nextn)
        rows = np.repeat(numbers, self._requests.nextn).reshape(positions.shape)
        tokens = self._requests.tokens_of(self._requests.tags(rows, positions))
        return tokens ^ (~self._requests.right_drafts(numbers)).astype(np.int32)

    def decode(self, step: StepView, numbers: Int64, window: Window) -> Results:
        """The same for a decode step; ``window`` has what the rows' requests hold from here on."""
        requests, rows = self._requests, len(numbers)
        self.memory.copy(step.clone_blocks, step.clone_states, step.zero_states)
        confidences = self._confidences(numbers)
        planned = step.q_len[:rows]
        q = (self._split(step.caps, confidences, step.total_q) if step.provisional else planned).astype(np.int64)
        known = requests.known[numbers]
        start = known - 1
        accepted = np.minimum(requests.right_drafts(numbers).cumprod(axis=1).sum(axis=1), q - 1)
        table, slots = step.block_table[:rows], step.slot[:rows]
        self.memory.read(numbers, table, slots, start)
        row_of, positions = _tokens(start, q)
        tags = window.at(row_of, positions)
        tags[positions > (start + accepted)[row_of]] ^= _REJECTED
        self.memory.write(table, slots, row_of, positions, tags, start + q)
        counts = accepted + 1
        first = known[0] - window.base[0] if rows else 0
        tokens = requests.tokens_of(window.tags[:, first : first + self._max_q])
        tokens[self._columns >= counts[:, None]] = -1
        requests.known[numbers] = known + counts
        requests.rounds[numbers] += 1
        # Whoever was passed over in its first decode step has lost its drafts too.
        requests.drafted[self._fresh] = 0
        self._fresh.clear()
        return Results(tokens, counts.astype(np.int32), confidences, known, q, start + q)

    def _confidences(self, numbers: Int64) -> NDArray[np.uint16]:
        nextn = self._requests.nextn
        return np.repeat(self._requests.confidence[numbers], nextn).reshape(len(numbers), nextn)


def _tokens(starts: Int64, lengths: Int64) -> tuple[Int64, Int64]:
    """Row and position of every token of ragged rows."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    before = np.cumsum(lengths) - lengths
    return rows, np.arange(len(rows)) - (before - starts)[rows]
