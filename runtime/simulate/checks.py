"""The rules that a scheduled step must keep, from its arrays and from what its caller knows (docs/scheduler.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_gen.runtime.scheduler_core import Int32, StepView
from deepinfer_gen.runtime.simulate.mixing import Int64
from deepinfer_gen.runtime.simulate.requests import Requests
from deepinfer_gen.runtime.simulate.violation import violated
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

Mask = NDArray[np.bool_]


class StepChecks:
    """Checks of one rank. ``ragged`` and ``fixed`` are what the Plan says of dispatch and verification."""

    def __init__(
        self,
        requests: Requests,
        workload: Mapping[int, WorkloadRequest],
        constants: Mapping[str, Any],
        *,
        ragged: bool,
        fixed: bool,
    ) -> None:
        self._requests = requests
        self._workload = workload
        self._constants = constants
        self._ragged = ragged
        self._fixed = fixed
        self._max_q: int = constants["kMaxQ"]
        self._nextn: int = constants["kNextn"]
        self._block_size: int = constants["kBlockSize"]
        self._graph_sizes = np.array(constants.get("kGraphSizes", ()), np.int64)
        self._graph_rows = dict(zip(constants.get("kGraphSizes", ()), constants.get("kGraphRows", ()), strict=True))
        self._history = np.arange(-constants["kHistory"], 0)
        self.decode_number = 0

    def prefill(self, step: StepView, numbers: Int64) -> None:
        """I19, the rows and their inputs."""
        c, rows = self._constants, len(numbers)
        q, k, samples = step.q_len[:rows], step.k_len[:rows], step.samples[:rows]
        for name, value, limit in (
            ("tokens", step.total_q, c["kMaxNumBatchedTokens"]),
            ("prompts", rows, c["kMaxNumPrompts"]),
            ("tokens of K length", int(k.sum()), c["kPrefillMaxSumSeqlenK"]),
        ):
            if value > limit:
                violated("I19", f"the prefill step has {value} {name}, and the limit is {limit}")
        if step.graph != 0 or len(step.ids) != rows or int(q.sum()) != step.total_q:
            violated("I14", f"the prefill step has total_q {step.total_q} for rows of {q.tolist()} tokens")
        self._every(numbers, q > 0, "I19", "its chunk is empty")
        if rows and not samples[:-1].all():
            violated("I19", "a prompt joined after a chunk was cut", self._name(numbers, int(np.argmin(samples))))
        done = self._requests.committed[numbers]
        self._every(numbers, samples == (k == done), "I19", "only its last chunk samples")
        self._every(numbers, k <= done, "I19", "its chunk ends behind its tokens")
        if rows and not samples[-1]:
            self._cut(int(numbers[-1]), int(k[-1] - q[-1]), int(k[-1]))
        self._every(numbers, step.slot[:rows] > 0, "I12", "its slot is the dummy")
        needed = step.block_table[np.arange(rows), (done - 1) // self._block_size]
        self._every(numbers, needed > 0, "I13", "its blocks do not hold its whole prompt")
        fresh = k == q
        self._every(numbers, ~fresh | np.isin(step.slot[:rows], step.zero_states), "I12", "its slot is not cleared")
        self._inputs(step, numbers, (k - q).astype(np.int64))

    def _cut(self, number: int, start: int, end: int) -> None:
        """A legal end of a chunk that is not the last: aligned, and in no image span."""
        name = self._requests.names[number]
        unit = 2 * self._constants["kCpSize"]
        if self._constants["kCpSize"] > 1 and (end - start) % unit:
            violated("I19", f"a chunk of {end - start} tokens is no multiple of {unit}", name)
        for first, last in self._workload[number].image_spans.tolist():
            if first < end < last:
                violated("I19", f"its chunk ends at {end}, inside the image span {first}..{last}", name)

    def decode(self, step: StepView, numbers: Int64, agreed_graph: int) -> None:
        """I13 to I15, row order, remap, drafts, and padding that touches nothing."""
        requests, rows = self._requests, len(numbers)
        q, k = step.q_len[:rows].astype(np.int64), step.k_len[:rows].astype(np.int64)
        committed, flying = requests.committed[numbers], requests.flying[numbers]
        self._geometry(step, rows, agreed_graph)
        remap = np.where(requests.decode_number[numbers] == self.decode_number, requests.row[numbers], -1)
        self._every(numbers, step.remap[:rows] == remap, "B3", "its remap is not its row of the last decode step")
        left = requests.length_limit[numbers] - committed - (flying > 0)
        self._every(numbers, left > 0, "I17", "it is scheduled with no token left to produce")
        present = np.where(remap >= 0, self._nextn, requests.drafted[numbers])
        caps = np.minimum(present, left - 1)
        self._every(numbers, step.caps[:rows] == caps, "I15", "its cap of drafts is wrong")
        least = caps + 1 if self._fixed and self._ragged else 1
        self._every(numbers, (q <= caps + 1) & (q >= least), "I15", "it verifies other than what its cap says")
        if (np.diff(committed) > 0).any():
            violated("I14", f"rows are not ordered by length: {committed.tolist()}")
        self._every(numbers, k - q >= committed - 1, "I14", "it starts before its newest token")
        self._every(numbers, requests.known[numbers] <= k - q + 1, "I13", "its planned length is below the real one")
        reach = committed + (1 + (flying > 0)) * self._max_q
        last = step.block_table[np.arange(rows), (reach - 1) // self._block_size]
        self._every(numbers, last > 0, "I13", "its blocks do not cover the frames in flight and this step")
        self._every(numbers, step.slot[:rows] > 0, "I12", "its slot is the dummy")
        self._inputs(step, numbers, k - q)

    def _geometry(self, step: StepView, rows: int, agreed_graph: int) -> None:
        q, size = step.q_len, step.graph
        if int(q[:rows].sum()) != step.total_q or int(q.sum()) != size:
            violated("I14", f"rows hold {int(q[:rows].sum())} tokens and {int(q.sum())} with padding, total_q is"
                     f" {step.total_q}, the graph {size}")  # fmt: skip
        if self._ragged:
            wanted = int(self._graph_sizes[np.searchsorted(self._graph_sizes, step.total_q)])
        else:
            wanted = agreed_graph
        if size != wanted:
            violated("I14", f"the graph is {size} for {step.total_q} tokens, not {wanted}")
        if len(step.ids) != self._graph_rows[size] or len(step.input_ids) != size:
            violated("I14", f"graph {size} has {len(step.ids)} rows and {len(step.input_ids)} tokens")
        if int(q.max(initial=0)) > self._max_q:
            violated("I14", f"a row has {int(q.max())} tokens, above {self._max_q}")
        padding = (step.ids, step.slot, step.samples, step.block_table)
        if any(array[rows:].any() for array in padding) or step.input_ids[step.total_q :].any():
            violated("B24", "a padding row touches more than block 0 and slot 0")
        if (step.k_len[rows:] != q[rows:]).any() or (step.remap[rows:] != -1).any():
            violated("B24", "a padding row reads a cache")

    def _inputs(self, step: StepView, numbers: Int64, starts: Int64) -> None:
        """I17, B3: every input token is the request's at its position, or the device gathers it."""
        requests, rows, total = self._requests, len(numbers), step.total_q
        row_of = step.row_of_token[:total].astype(np.int64)
        q = step.q_len[:rows]
        positions = step.positions[:total].astype(np.int64)
        offsets = positions - starts[row_of]
        if (np.bincount(row_of, minlength=rows) != q).any() or (np.diff(row_of) < 0).any():
            violated("I14", "the tokens of the step are not in the order of its rows")
        if (offsets != np.arange(total) - np.repeat(np.cumsum(q) - q, q)).any():
            violated("I14", "the positions of a row are not consecutive")
        of = numbers[row_of]
        on_host = positions < requests.committed[of]
        expected = np.where(on_host, requests.tokens_of(requests.tags(of, positions)), 0)
        gathered = step.remap[row_of] >= 0
        if self._nextn:
            drafted = ~on_host & ~gathered
            expected[drafted] = requests.drafts[of[drafted], offsets[drafted] - 1]
        elif (~on_host & ~gathered).any():
            token = int(np.argmax(~on_host & ~gathered))
            violated("B3", f"position {positions[token]} is a placeholder that no row of the last step holds",
                     self._name(of, token))  # fmt: skip
        if (step.input_ids[:total] != expected).any():
            token = int(np.argmax(step.input_ids[:total] != expected))
            violated("I17", f"its input at position {positions[token]} is {step.input_ids[token]}, not {expected[token]}",
                     self._name(of, token))  # fmt: skip
        before = starts[:, None] + self._history
        of_rows = np.broadcast_to(numbers[:, None], before.shape)
        known = (before >= 0) & (before < requests.committed[numbers][:, None])
        history = np.where(known, requests.tokens_of(requests.tags(of_rows, np.maximum(before, 0))), -1)
        self._every(numbers, (step.history[:rows] == history).all(axis=1), "I17", "its history holds other tokens")

    def _every(self, numbers: Int64, holds: Mask, prop: str, otherwise: str) -> None:
        if not holds.all():
            row = int(np.argmin(holds))
            number = int(numbers[row])
            r = self._requests
            values = f"row {row}, {r.committed[number]} tokens committed, limit {r.length_limit[number]}"
            violated(prop, f"{otherwise} ({values})", r.names[number])

    def _name(self, numbers: Int64, index: int) -> str:
        return self._requests.names[int(numbers[index])]


def places_of(stats: Mapping[str, int]) -> int:
    """Sequences that have a place, without those that only drain."""
    return sum(stats[name] for name in ("running", "prompted", "partial", "loading"))


def check_places(stats: Mapping[str, int], constants: Mapping[str, Any]) -> None:
    """I22: sequences with a place never exceed their number."""
    if places_of(stats) > constants["kMaxNumSeqs"]:
        violated("I22", f"{places_of(stats)} sequences have a place, and max_num_seqs is {constants['kMaxNumSeqs']}")
