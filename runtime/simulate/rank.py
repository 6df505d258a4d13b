"""One rank of a simulated group: its compiled scheduler, its device, and its uncommitted frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Action, Int32, Reason, SchedulerCore
from deepinfer_gen.runtime.simulate.actions import DECODE, LENGTH, PREEMPTED, PREFILL, STOP
from deepinfer_gen.runtime.simulate.checks import StepChecks, check_places
from deepinfer_gen.runtime.simulate.device import Device, Results
from deepinfer_gen.runtime.simulate.memory import DeviceMemory
from deepinfer_gen.runtime.simulate.mixing import Int64
from deepinfer_gen.runtime.simulate.requests import LIVE, NEVER, Requests
from deepinfer_gen.runtime.simulate.violation import ViolationError, violated
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

_NO_TOKENS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the Plan says that the constants do not: dispatch, verification, and when results are delivered."""

    ragged: bool
    fixed: bool
    zos: bool

    @staticmethod
    def of(values: Mapping[str, Mapping[str, Any]]) -> Choices:
        """From the ``values`` of plan.json; what an engine type lacks is off."""

        def value(key: str) -> Any:
            return values[key]["value"] if key in values else None

        return Choices(
            ragged=value("parallel.dispatch") != "padded",
            fixed=value("speculative.verify") != "varlen",
            zos=value("schedule.zos") == "on",
        )


class Decision(NamedTuple):
    """How a step came about, as the scheduler's ``decision()`` says it; -1 where nothing was voted on."""

    point: int = 0
    want: int = -1
    go: int = -1
    scheduled: int = -1
    decode_counter: int = 0


@dataclass(slots=True)
class Frame:
    """A step of this rank from its scheduling to its line in the trace."""

    step: int
    action: Action
    step_id: int = 0
    total_q: int = 0
    graph: int = 0
    numbers: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    occupancy: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    new: list[bool] = field(default_factory=list)
    results: Results | None = None
    decision: Decision = field(default_factory=Decision)
    accepted: dict[str, int] = field(default_factory=dict)
    emitted: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    stats: Mapping[str, int] = field(default_factory=dict)
    fingerprint: int = 0
    decoding: int = 0  # sequences that decode, when the step was scheduled
    waiting: bool = False  # whether requests waited then


class Rank:
    """``schedule`` executes what the scheduler decided, ``commit`` delivers the oldest frame's results."""

    def __init__(
        self,
        index: int,
        extension: ModuleType,
        requests: Requests,
        workload: Sequence[WorkloadRequest],
        choices: Choices,
    ) -> None:
        self.index = index
        self.constants: dict[str, Any] = extension.constants()
        self.scheduler: SchedulerCore = extension.Scheduler()
        self.initial = self.scheduler.fingerprint()
        self.requests = requests
        self.workload = {r.number: r for r in workload if r.rank == index}
        c = self.constants
        # History, the newest token, and what a frame in flight and this step may add.
        self._window_columns = c["kHistory"] + 1 + 2 * c["kMaxQ"]
        memory = DeviceMemory(
            requests,
            blocks=c["kNumBlocks"],
            block_size=c["kBlockSize"],
            slots=c["kNumSlots"],
            ring=c["kSwaRingTokens"],
            window=c["kSlidingWindow"],
        )
        self.device = Device(requests, memory, c, self.scheduler.split)
        self.checks = StepChecks(requests, self.workload, c, ragged=choices.ragged, fixed=choices.fixed)
        self.frames: deque[Frame] = deque()
        self.ended: dict[str, int] = {}  # since the last frame took them
        self.ended_in_step: set[int] = set()  # since begin_step
        self.preempted_rows: list[int] = []
        self.loads: dict[int, tuple[int, Int32]] = {}  # slot and blocks of caches that are written from outside

    def add(self, number: int) -> None:
        """Deliver a request; for a decode-only engine its prompt and first token come from elsewhere."""
        request, requests = self.workload[number], self.requests
        completion = self.constants["kEngineType"] == "COMPLETION"
        length = request.prompt_len + completion
        if requests.end_at[number] <= length:
            requests.end_at[number] = NEVER  # the token came with it
        ends = _NO_TOKENS
        if requests.end_at[number] <= requests.length_limit[number]:
            ends = requests.tokens(number, int(requests.end_at[number]))[-1:]
        tokens = requests.tokens(number, length)
        if completion:
            self.scheduler.add_prompted(number, tokens, request.prompt_len, request.max_tokens, 0, ends)
        else:
            spans, checkpoints = request.image_spans, request.checkpoints
            self.scheduler.add(number, tokens, request.max_tokens, 0, ends, checkpoints, spans)
        requests.status[number] = LIVE
        requests.committed[number] = requests.known[number] = length

    def fork(self, child: int) -> None:
        """Branch ``child`` off its parent, which must be able to."""
        parent = int(self.requests.parent[child])
        self.scheduler.fork(parent, np.array([child], np.uint64))
        self.requests.branch(child, parent)
        self.requests.status[child] = LIVE

    def begin(self, flags: Int32 | None) -> int:
        """begin_step with the group's record; what ended before it is past."""
        self.ended_in_step.clear()
        return self.scheduler.begin_step(flags)

    def schedule(self, step: int, action: Action, agreed_graph: int) -> Frame:
        """Take the step that the scheduler just decided on, check it, and execute it on the device."""
        frame = Frame(step, action)
        told = self.scheduler.decision()
        frame.decision = Decision(told.point, told.want, told.go, told.scheduled, told.decode_counter)
        view = self.scheduler.step()
        frame.preempted = self._note_preempted(view.preempted)
        for number in view.loads.tolist():
            self.loads[number] = (self.scheduler.slot(number), self.scheduler.blocks(number))
        if action in (PREFILL, DECODE):
            self._execute(frame, view, agreed_graph)
        self.collect()
        stats = self.scheduler.stats()
        check_places(stats, self.constants)
        frame.decoding = stats["running"]
        frame.waiting = stats["waiting"] + stats["incoming"] > 0
        self.frames.append(frame)
        return frame

    def _execute(self, frame: Frame, view: Any, agreed_graph: int) -> None:
        requests = self.requests
        numbers = view.ids[: view.num_rows].astype(np.int64)
        if view.kind != frame.action:
            violated("I2", f"the step is of kind {view.kind} after action {frame.action}")
        strange = (requests.status[numbers] != LIVE) | (requests.rank[numbers] != self.index)
        # What ended between the voting rounds may have a row, whose results are dropped.
        if strange.any() and not self.ended_in_step.issuperset(numbers[strange].tolist()):
            names = [requests.names[n] for n in numbers[strange]]
            violated("I17", f"rows are of requests that are not alive here: {', '.join(names)}")
        if len(np.unique(numbers)) != len(numbers):
            violated("I14", f"a request has two rows: {numbers.tolist()}")
        decode = frame.action == DECODE
        if decode:
            window = requests.window(numbers, self.constants["kHistory"], self._window_columns)
            self.checks.decode(view, numbers, agreed_graph, window)
            frame.results = self.device.decode(view, numbers, window)
        else:
            self.checks.prefill(view, numbers)
            frame.results = self.device.prefill(view, numbers)
        frame.step_id, frame.total_q, frame.graph = view.step_id, view.total_q, view.graph
        frame.numbers, frame.occupancy = numbers, requests.occupancy[numbers]
        frame.new = (view.remap[: view.num_rows] < 0).tolist()
        if int(frame.results.q.sum()) != view.total_q:
            violated("I14", f"the device verifies {int(frame.results.q.sum())} tokens of total_q {view.total_q}")
        if not decode:
            requests.first_chunk[numbers[requests.first_chunk[numbers] < 0]] = frame.step
            requests.prefilled[numbers[frame.results.counts > 0]] = True
        else:
            self.checks.decode_number += 1
            requests.decode_number[numbers] = self.checks.decode_number
            requests.row[numbers] = np.arange(len(numbers))
            requests.flying[numbers] += 1

    def _note_preempted(self, ids: Any) -> list[str]:
        numbers = ids.astype(np.int64)
        self.requests.occupancy[numbers] += 1
        self.requests.drafted[numbers] = 0
        self.requests.prefilled[numbers] = False
        self.preempted_rows = numbers.tolist()
        return [self.requests.names[n] for n in self.preempted_rows]

    def fill(self, number: int) -> None:
        """The transfer that brings a request's cache writes it, also after the request's end, and is over."""
        slot, blocks = self.loads.pop(number)
        memory, length = self.device.memory, int(self.requests.committed[number])
        memory.rings[slot] = 0
        memory.fill(number, blocks, slot, length - 1)
        self.requests.prefilled[number] = True
        self.scheduler.end_transfer(number)

    def free_places(self) -> int:
        """How many more sequences may have a place."""
        return int(self.scheduler.stats()["free_places"])

    def commit(self) -> Frame:
        """Deliver the results of the oldest frame and check what became of them."""
        frame = self.frames.popleft()
        if frame.results is not None:
            try:
                self._deliver(frame, frame.results)
            except ValueError as fault:
                raise ViolationError("B1", f"a commit was refused: {fault}") from fault
        self.collect()
        frame.finished, self.ended = self.ended, {}
        return frame

    def _deliver(self, frame: Frame, results: Results) -> None:
        requests, numbers = self.requests, frame.numbers
        live = (requests.status[numbers] == LIVE) & (requests.occupancy[numbers] == frame.occupancy)
        committed = requests.committed[numbers]
        done = self.scheduler.commit(frame.step_id, results.tokens, results.counts, results.confidences)
        if (done.ids != numbers).any():
            violated("I17", f"a commit speaks of {done.ids.tolist()}, the step was of {numbers.tolist()}")
        if frame.action == DECODE:
            requests.flying[numbers] -= 1
        producing = live & (results.counts > 0)
        if (producing & (committed != results.first)).any():
            row = int(np.argmax(producing & (committed != results.first)))
            name = requests.names[int(numbers[row])]
            violated("I17", f"its row yields position {results.first[row]}, and {committed[row]} tokens are out", name)
        until = np.minimum(requests.length_limit[numbers], requests.end_at[numbers])
        expected = np.where(producing, np.minimum(results.counts, until - committed), 0)
        reasons = np.where(requests.end_at[numbers] <= requests.length_limit[numbers], STOP, LENGTH)
        reasons = np.where(producing & (committed + expected == until), reasons, 0)
        for what, found, wanted in (("tokens", done.emitted, expected), ("reason", done.reasons, reasons)):
            if (found != wanted).any():
                row = int(np.argmax(found != wanted))
                name = requests.names[int(numbers[row])]
                violated("I17", f"{what} of its row are {found[row]}, and {wanted[row]} is right", name)
        requests.committed[numbers] += expected
        first = numbers[(expected > 0) & (requests.first_token[numbers] < 0)]
        requests.first_token[first] = frame.step
        frame.emitted = int(expected.sum())
        if frame.action == DECODE:
            rows = np.flatnonzero(producing).tolist()
            frame.accepted = {requests.names[int(numbers[r])]: int(expected[r]) - 1 for r in rows}

    def collect(self) -> None:
        """Take the ends that the scheduler hands out: each request one."""
        ended = self.scheduler.outcomes()
        for number, reason in zip(ended.ids.tolist(), ended.reasons.tolist(), strict=True):
            name = self.requests.names[number]
            if self.requests.status[number] != LIVE:
                violated("I20", f"it ends ({Reason(reason).name.lower()}) after its end", name)
            self.requests.end(number, reason)
            self.ended_in_step.add(number)
            self.ended[name] = reason
        for number in self.preempted_rows:
            gone = self.requests.reason[number] == PREEMPTED
            if gone != bool(self.constants["kStopPreemptedRequest"]):
                told = "is handed out" if gone else "is missing"
                violated("I18", f"its end as preempted {told}", self.requests.names[number])
        self.preempted_rows = []

    def check_pools(self) -> None:
        """I9, I10: free and referenced blocks are all blocks; the scheduler's own bookkeeping agrees."""
        try:
            self.scheduler.check_invariants()
        except RuntimeError as fault:
            raise ViolationError("I9", f"the scheduler's bookkeeping contradicts itself: {fault}") from fault

    def check_drained(self) -> None:
        """I20: nothing is left behind."""
        stats, c = self.scheduler.stats(), self.constants
        for name, found, wanted in (
            ("blocks", stats["free_blocks"], c["kNumBlocks"] - 1),
            ("slots", stats["free_slots"], c["kNumSlots"] - 1),
        ):
            if found != wanted:
                violated("I20", f"{found} of {wanted} {name} are free at the end")
        if live := self.requests.live(self.index):
            violated("I20", "it has not ended when the group is done", self.requests.names[live[0]])
        if self.scheduler.fingerprint() != self.initial:
            violated("I20", "the scheduler's state at the end is not its first one")
