"""The rules that a scheduled step must keep, from its arrays and from what its caller knows (docs/scheduler.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_gen.runtime.scheduler_core import Int32, StepView
from deepinfer_gen.runtime.simulate.mixing import Int64, UInt64
from deepinfer_gen.runtime.simulate.requests import Requests, Window
from deepinfer_gen.runtime.simulate.violation import violated
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

Mask = NDArray[np.bool_]
TagsAt = Callable[[Int64, Int64], UInt64]


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
        committed = self._requests.committed[numbers]
        needed = step.block_table[np.arange(rows), (committed - 1) // self._block_size]
        self._all(
            numbers,
            ("I19", q > 0, "its chunk is empty"),
            ("I19", samples == (k == committed), "only its last chunk samples"),
            ("I19", k <= committed, "its chunk ends behind its tokens"),
            ("I19", step.prefill_len[:rows] == committed, "the length of its prefill is not that of its tokens"),
            ("I12", step.slot[:rows] > 0, "its slot is the dummy"),
            ("I12", (k > q) | np.isin(step.slot[:rows], step.zero_states), "its slot is not cleared"),
            ("I13", needed > 0, "its blocks do not hold its whole prompt"),
        )
        if rows and not samples[:-1].all():
            violated("I19", "a prompt joined after a chunk was cut", self._name(numbers, int(np.argmin(samples))))
        if rows and not samples[-1]:
            self._cut(int(numbers[-1]), int(k[-1] - q[-1]), int(k[-1]))
        requests = self._requests
        self._inputs(
            step, numbers, (k - q).astype(np.int64), lambda of, positions: requests.tags(numbers[of], positions)
        )

    def _cut(self, number: int, start: int, end: int) -> None:
        """A legal end of a chunk that is not the last: aligned, and in no image span."""
        name = self._requests.names[number]
        unit = 2 * self._constants["kCpSize"]
        if self._constants["kCpSize"] > 1 and (end - start) % unit:
            violated("I19", f"a chunk of {end - start} tokens is no multiple of {unit}", name)
        for first, last in self._workload[number].image_spans.tolist():
            if first < end < last:
                violated("I19", f"its chunk ends at {end}, inside the image span {first}..{last}", name)

    def decode(self, step: StepView, numbers: Int64, agreed_graph: int, window: Window) -> None:
        """I13 to I15, row order, remap, drafts, and padding that touches nothing."""
        r, rows = self._requests, len(numbers)
        q, k = step.q_len[:rows].astype(np.int64), step.k_len[:rows].astype(np.int64)
        self._geometry(step, rows, agreed_graph)
        committed, flying = r.committed[numbers], r.flying[numbers] > 0
        remap = np.where(r.decode_number[numbers] == self.decode_number, r.row[numbers], -1)
        left = r.length_limit[numbers] - committed - flying
        caps = np.minimum(np.where(remap >= 0, self._nextn, r.drafted[numbers]), left - 1)
        least = caps + 1 if self._fixed and self._ragged else 1
        starts = k - q
        reach = committed + np.where(flying, 2 * self._max_q, self._max_q)
        last = step.block_table[np.arange(rows), (reach - 1) // self._block_size]
        self._all(
            numbers,
            ("B3", step.remap[:rows] == remap, "its remap is not its row of the last decode step"),
            ("I17", left > 0, "it is scheduled with no token left to produce"),
            ("I15", step.caps[:rows] == caps, "its cap of drafts is wrong"),
            ("I15", (q <= caps + 1) & (q >= least), "it verifies other than what its cap says"),
            ("I14", starts >= committed - 1, "it starts before its newest token"),
            ("I13", r.known[numbers] <= starts + 1, "its planned length is below the real one"),
            ("I13", last > 0, "its blocks do not cover the frames in flight and this step"),
            ("I12", step.slot[:rows] > 0, "its slot is the dummy"),
        )
        if (committed[1:] > committed[:-1]).any():
            violated("I14", f"rows are not ordered by length: {committed.tolist()}")
        self._inputs(step, numbers, starts, window.at)

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
        padding = (step.ids, step.prefill_len, step.slot, step.samples, step.block_table)
        if any(array[rows:].any() for array in padding) or step.input_ids[step.total_q :].any():
            violated("B24", "a padding row touches more than block 0 and slot 0")
        if (step.k_len[rows:] != q[rows:]).any() or (step.remap[rows:] != -1).any():
            violated("B24", "a padding row reads a cache")

    def _inputs(self, step: StepView, numbers: Int64, starts: Int64, tags_at: TagsAt) -> None:
        """I17, B3: every input token is the request's at its position, or the device gathers it."""
        requests, rows, total = self._requests, len(numbers), step.total_q
        q = step.q_len[:rows]
        row_of = np.repeat(np.arange(rows), q)
        offsets = np.arange(total) - (np.cumsum(q) - q)[row_of]
        positions = starts[row_of] + offsets
        if not np.array_equal(step.row_of_token[:total], row_of):
            violated("I14", "the tokens of the step are not in the order of its rows")
        if not np.array_equal(step.positions[:total], positions):
            violated("I14", "the positions of a row are not consecutive")
        committed = requests.committed[numbers]
        on_host = positions < committed[row_of]
        expected = np.where(on_host, requests.tokens_of(tags_at(row_of, positions)), 0)
        held = on_host | (step.remap[:rows] >= 0)[row_of]
        if not held.all():
            self._placeholders(numbers[row_of], positions, offsets, held, expected)
        if not np.array_equal(step.input_ids[:total], expected):
            token = int(np.argmax(step.input_ids[:total] != expected))
            values = f"{step.input_ids[token]}, not {expected[token]}"
            name = self._name(numbers, int(row_of[token]))
            violated("I17", f"its input at position {positions[token]} is {values}", name)
        before = starts[:, None] + self._history
        each = np.repeat(np.arange(rows), len(self._history)).reshape(before.shape)
        tokens = requests.tokens_of(tags_at(each, before))
        history = np.where((before >= 0) & (before < committed[:, None]), tokens, -1)
        if not np.array_equal(step.history[:rows], history):
            row = int(np.argmax((step.history[:rows] != history).any(axis=1)))
            violated("I17", f"its history is {step.history[row].tolist()}", self._name(numbers, row))

    def _placeholders(self, of: Int64, positions: Int64, offsets: Int64, held: Mask, expected: Int32) -> None:
        """Tokens that neither the host nor the last step has: drafts of a prefill step, written to the input."""
        lost = ~held & (offsets > self._requests.drafted[of])
        if lost.any():
            token = int(np.argmax(lost))
            text = f"position {positions[token]} is a placeholder that no row of the last step holds"
            violated("B3", text, self._name(of, token))
        expected[~held] = self._requests.drafts[of[~held], offsets[~held] - 1]

    def _all(self, numbers: Int64, *rules: tuple[str, Mask, str]) -> None:
        """Every rule holds for every row."""
        holds = rules[0][1]
        for _, mask, _ in rules[1:]:
            holds = holds & mask
        if holds.all():
            return
        prop, mask, otherwise = next(rule for rule in rules if not rule[1].all())
        row = int(np.argmin(mask))
        number = int(numbers[row])
        r = self._requests
        values = f"row {row}, {r.committed[number]} tokens committed, limit {r.length_limit[number]}"
        violated(prop, f"{otherwise} ({values})", r.names[number])

    def _name(self, numbers: Int64, index: int) -> str:
        return self._requests.names[int(numbers[index])]


def check_places(stats: Mapping[str, int], constants: Mapping[str, Any]) -> None:
    """I22: sequences with a place, without those that only drain, never exceed their number."""
    places = sum(stats[name] for name in ("running", "prompted", "partial", "loading"))
    if places > constants["kMaxNumSeqs"]:
        violated("I22", f"{places} sequences have a place, and max_num_seqs is {constants['kMaxNumSeqs']}")
