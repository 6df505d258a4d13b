"""The caller of the schedulers: it brings the workload, branches forks, and does what the fault plan says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Reason
from deepinfer_gen.runtime.simulate.actions import ABORT, ERROR
from deepinfer_gen.runtime.simulate.fault_plan import PHASES, FaultEvent
from deepinfer_gen.runtime.simulate.rank import Rank
from deepinfer_gen.runtime.simulate.requests import ENDED, FUTURE, LIVE, Requests
from deepinfer_gen.runtime.simulate.violation import violated
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest


class Caller:
    """Calls every rank's scheduler between steps. ``drain`` delivers all outstanding results of a rank."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        requests: Requests,
        workload: Sequence[WorkloadRequest],
        plan: Sequence[FaultEvent],
        drain: Callable[[Rank], None],
    ) -> None:
        self._ranks = ranks
        self._requests = requests
        self._arrivals = deque(sorted(workload, key=lambda r: r.arrival_step))
        aborted = [r for r in workload if r.abort_step is not None]
        self._aborts = deque(sorted(aborted, key=lambda r: r.abort_step or 0))
        self._events = deque(e for e in plan if e.event != "end_token")
        self._drain = drain
        self._forks: list[WorkloadRequest] = []
        self._coming = np.bincount([r.rank for r in workload], minlength=len(ranks))
        self._held_loads: set[int] = set()
        self._told_pending = [False] * len(ranks)
        self._plan_pending = [False] * len(ranks)
        self.late: set[int] = set()  # ranks whose results of this step are late
        self.refused_events = 0
        self.forks_without_parent = 0
        self.injected_error = False
        for event in plan:
            if event.event == "end_token":
                requests.end_at[event.number] = requests.prompt_len[event.number] + event.output

    @property
    def has_more(self) -> bool:
        """Whether anything may still come from here."""
        return bool(self._arrivals or self._events or self._forks or self._aborts)

    def begin(self, step: int) -> None:
        """Before a step: what arrives and what is aborted by then, on all ranks."""
        self.late.clear()
        while self._arrivals and self._arrivals[0].arrival_step <= step:
            request = self._arrivals.popleft()
            self._coming[request.rank] -= 1
            if request.parent:
                self._forks.append(request)
            else:
                self._ranks[request.rank].add(request.number)
        if self._forks:
            self._forks = [fork for fork in self._forks if not self._branched(fork, may_drain=True)]
        while self._aborts and (self._aborts[0].abort_step or 0) <= step:
            self._end(self._aborts.popleft().number, ABORT)
        self.during(step, "begin")
        self._tell_pending()

    def settle(self) -> None:
        """The group is done, whatever the plan said after its last vote: nothing more comes from here."""
        self._plan_pending = [False] * len(self._ranks)
        self._tell_pending()

    def scheduled(self) -> None:
        """After a step is scheduled: branches of what it prefills, so that each has its own first token."""
        if self._forks:
            self._forks = [fork for fork in self._forks if not self._branched(fork, may_drain=False)]
            self._tell_pending()

    def end(self) -> None:
        """After a step: transfers that bring a cache have come to their end."""
        for rank in self._ranks:
            for number in [n for n in rank.loads if n not in self._held_loads]:
                rank.fill(number)

    def during(self, step: int, phase: str) -> None:
        """The events of the fault plan up to this edge; those of an edge that a step did not have come at the next."""
        while self._events and _due(self._events[0], step, phase):
            self._do(self._events.popleft())

    def _do(self, event: FaultEvent) -> None:
        rank = self._ranks[event.rank]
        match event.event:
            case "late":
                self.late.add(event.rank)
            case "early":
                self._drain(rank)
            case "error":
                self.injected_error = True
                rank.scheduler.set_error(event.message)
            case "pending" | "settled":
                self._plan_pending[event.rank] = event.event == "pending"
                self._tell_pending()
            case "hold_load":
                self._held_loads.add(event.number)
            case "abort":
                self._end(event.number, ABORT)
            case "finish":
                self._end(event.number, event.reason)
            case "end_transfer" if event.number in rank.loads:
                self._held_loads.discard(event.number)
                rank.fill(event.number)
            case name:
                self._call(rank, name, event.number)

    def _call(self, rank: Rank, name: str, number: int) -> None:
        """A call that the state may forbid; a refused one must change nothing."""
        before = rank.scheduler.fingerprint()
        try:
            getattr(rank.scheduler, name)(number)
        except ValueError as fault:
            self.refused_events += 1
            if rank.scheduler.fingerprint() != before:
                text = f"{name} was refused ({fault}) and changed the state"
                violated("B10", text, self._requests.names[number], rank.index)

    def _end(self, number: int, reason: Reason) -> None:
        """End a request wherever it is in its life; one that has ended stays as it is."""
        requests = self._requests
        rank = self._ranks[int(requests.rank[number])]
        if requests.status[number] == LIVE:
            rank.scheduler.finish(number, reason)
            rank.collect()
        elif requests.status[number] == FUTURE and any(f.number == number for f in self._forks):
            self._forks = [f for f in self._forks if f.number != number]
            self._give_up(number, reason)

    def _give_up(self, number: int, reason: Reason) -> None:
        self._requests.end(number, reason)
        rank = self._ranks[int(self._requests.rank[number])]
        rank.ended[self._requests.names[number]] = reason

    def _branched(self, fork: WorkloadRequest, *, may_drain: bool) -> bool:
        """Whether the fork is dealt with: it was branched, or it has no parent any more."""
        requests, rank = self._requests, self._ranks[fork.rank]
        if requests.status[fork.parent] == ENDED:
            self.forks_without_parent += 1
            self._give_up(fork.number, ERROR)
            return True
        if not requests.prefilled[fork.parent]:
            return False
        if requests.flying[fork.parent]:
            if not may_drain:
                return False
            self._drain(rank)
            if requests.status[fork.parent] == ENDED:
                return self._branched(fork, may_drain=False)
        if not rank.free_places():
            return False
        rank.fork(fork.number)
        return True

    def _tell_pending(self) -> None:
        for rank in self._ranks:
            waiting = any(fork.rank == rank.index for fork in self._forks)
            pending = bool(self._coming[rank.index]) or waiting or self._plan_pending[rank.index]
            if pending != self._told_pending[rank.index]:
                rank.scheduler.set_pending(pending)
                self._told_pending[rank.index] = pending


def _due(event: FaultEvent, step: int, phase: str) -> bool:
    return event.step < step or (event.step == step and PHASES.index(event.phase) <= PHASES.index(phase))
