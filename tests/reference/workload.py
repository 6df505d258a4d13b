"""Random events for a lockstep world: every call that a user can make, good and bad, at any moment."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.lockstep import VOCABULARY, Lockstep, Rank
from reference.records import DONE

EVENTS = {
    "add": 12, "add_prompted": 6, "fork": 8, "pause": 2, "resume": 4, "begin_transfer": 2, "end_transfer": 8,
    "finish": 1, "abort": 1, "set_pending": 1, "observe": 3, "where": 2, "bad": 1, "collect": 1,
}  # fmt: skip
"""Event to weight."""


def _array(values: list[int]) -> Any:
    return np.array(values, np.int32)


class Workload:
    """Called between any two calls of a world. Each world leaves out some kinds of events, so that others show more."""

    def __init__(self, rng: random.Random, constants: Mapping[str, Any], *, requests: int) -> None:
        self.rng, self.constants, self.left = rng, constants, requests
        self.rate = rng.choice((0.1, 0.3, 0.8))
        # Without these two a world that has paused or loading requests would never come to its end.
        kept = [name for name in EVENTS if rng.random() < 0.7 or name in ("resume", "end_transfer")]
        self.names = [*kept, "add" if constants["kEngineType"] != "COMPLETION" else "add_prompted"]
        self.weights = [EVENTS[name] for name in self.names]
        self.draining = False
        self.crowd = rng.choice((0, 4, 20))  # requests at the start

    def __call__(self, world: Lockstep) -> None:
        while self.rng.random() < self.rate:
            rank = self.rng.choice(world.ranks)
            name = self.rng.choices(self.names, self.weights)[0]
            if not self.draining:
                getattr(self, name)(rank)

    def begin(self, world: Lockstep) -> None:
        """The requests that are there at the start."""
        for _ in range(self.crowd):
            getattr(self, self.names[-1])(self.rng.choice(world.ranks))

    def settle(self, world: Lockstep) -> None:
        """Nothing new comes; what waits for the caller goes on."""
        self.draining = True
        for rank in world.ranks:
            rank.pair.call("set_pending", False)
            for request in [*rank.known, *rank.gone]:
                rank.try_call("resume", request)
                rank.try_call("end_transfer", request)

    # What a request may be

    def _id(self, rank: Rank) -> int:
        """A new id; now and then one that was there before."""
        if rank.gone and self.rng.random() < 0.1:
            return self.rng.choice(rank.gone)
        rank.next_id += 1
        return rank.next_id

    def _some(self, rank: Rank) -> int:
        """An id that is known, as a rule."""
        if rank.gone and self.rng.random() < 0.15:
            return self.rng.choice(rank.gone)
        return self.rng.choice(rank.known) if rank.known else 999

    def _limits(self) -> tuple[int, int, list[int]]:
        """max_tokens, min_tokens and end ids."""
        rng = self.rng
        most = self.constants["kMaxModelLen"]
        max_tokens = rng.choice((1, rng.randint(1, 12), rng.randint(1, most), most))
        ends = rng.sample(range(VOCABULARY), rng.choice((0, 0, 0, 1, 2)))
        return max_tokens, rng.choice((0, 0, rng.randint(0, max_tokens))), ends

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def _length(self) -> int:
        most = self.constants["kMaxModelLen"]
        return self.rng.choice((1, *(self.rng.randint(1, min(10, most)) for _ in range(5)), self.rng.randint(1, most)))

    def _spans(self, length: int) -> list[list[int]]:
        spans, position = [], 0
        while self.rng.random() < 0.6:
            start = position + self.rng.randint(0, 6)
            position = start + self.rng.randint(1, 10)
            if position > length:
                break
            spans.append([start, position])
        return spans

    def _register(self, rank: Rank, ids: list[int]) -> None:
        rank.known += ids
        rank.gone = [i for i in rank.gone if i not in ids]

    # The events

    def add(self, rank: Rank) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        length, request = self._length(), self._id(rank)
        limits = self._limits()
        arguments: list[Any] = [request, _array(self._tokens(length)), *limits[:2], _array(limits[2])]
        if self.rng.random() < 0.4:
            inner = range(1, length)
            arguments.append(_array(sorted(self.rng.sample(inner, min(len(inner), self.rng.randint(0, 4))))))
            arguments.append(_array(self._spans(length)).reshape(-1, 2))  # type: ignore[arg-type]
        if rank.try_call("add", *arguments):
            self._register(rank, [request])

    def add_prompted(self, rank: Rank) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        length, request = self._length(), self._id(rank)
        max_tokens, min_tokens, ends = self._limits()
        prompt = self.rng.choice((length - 1, length - 1, self.rng.randint(1, length)))
        tokens = _array(self._tokens(length))
        if rank.try_call("add_prompted", request, tokens, prompt, max_tokens, min_tokens, _array(ends)):
            self._register(rank, [request])

    def fork(self, rank: Rank) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        children = [self._id(rank) for _ in range(self.rng.choice((1, 1, 2, 3)))]
        for parent in self.rng.sample([*rank.known, 999], min(4, len(rank.known))):
            if rank.try_call("fork", parent, np.array(children, np.uint64)):
                self._register(rank, children)
                return

    def pause(self, rank: Rank) -> None:
        rank.try_call("pause", self._some(rank))

    def resume(self, rank: Rank) -> None:
        rank.try_call("resume", self._some(rank))

    def begin_transfer(self, rank: Rank) -> None:
        rank.try_call("begin_transfer", self._some(rank))

    def end_transfer(self, rank: Rank) -> None:
        for request in (*rank.known, *rank.gone):
            if self.rng.random() < 0.4:
                rank.try_call("end_transfer", request)

    def finish(self, rank: Rank) -> None:
        rank.try_call("finish", self._some(rank), self.rng.randint(1, 5))

    def abort(self, rank: Rank) -> None:
        rank.try_call("abort", self._some(rank))

    def set_pending(self, rank: Rank) -> None:
        rank.pair.call("set_pending", self.rng.random() < 0.3)

    def observe(self, rank: Rank) -> None:
        if self.constants.get("kVarlen"):
            graph = self.rng.choice(self.constants["kGraphSizes"])
            rows = self.rng.randint(0, min(3, graph) + (self.rng.random() < 0.05))
            for _ in range(self.rng.choice((1, 1, 60))):
                rank.try_call("observe", graph, rows, self.rng.random() * 8, self.rng.random() / 4)

    def where(self, rank: Rank) -> None:
        request = self._some(rank)
        rank.try_call("blocks", request)
        rank.try_call("slot", request)

    def bad(self, rank: Rank) -> None:
        """Calls that are refused whatever the state."""
        assert not rank.try_call("abort", 10**9)
        assert not rank.try_call("pause", 10**9)
        assert not rank.try_call("end_transfer", 10**9)
        assert not rank.try_call("blocks", 10**9)
        assert not rank.try_call("finish", self._some(rank), 6)

    def collect(self, rank: Rank) -> None:
        rank.collect()


def run(
    make: Any, constants: Mapping[str, Any], seed: int, *, ranks: int, steps: int = 80, requests: int = 60
) -> Lockstep:
    """A world of ``steps`` steps with events, and then until its end; gives the world for its counters."""
    rng = random.Random(seed)
    workload = Workload(rng, constants, requests=requests)
    world = Lockstep(make, constants, ranks=ranks, rng=rng, event=workload)
    workload.begin(world)
    for _ in range(steps):
        if world.failed:
            return world
        world.step()
    workload.settle(world)
    for _ in range(2000):
        if world.failed or world.step() == DONE:
            return world
        workload.settle(world)
    raise AssertionError("the group does not come to an end")
