"""Random workloads on one rank and on groups: every step keeps every rule, every request ends as it must."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from scheduler_world import Rank, World

ENGINES = ["example", "speculative", "varlen", "padded", "tight", "completion", "prompt_cp"]


class Events:
    """What a caller may do between two steps, drawn from one generator."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.next_id = 1
        self.paused: list[tuple[Rank, int]] = []
        self.transfers: list[tuple[Rank, int, list[int], list[int | None]]] = []
        self.names = [self.add, self.add, self.fork, self.finish, self.pause, self.resume, self.begin, self.end]

    def __call__(self) -> None:
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            rank = self.rng.choice(self.world.ranks)
            self.rng.choice(self.names)(rank)
            rank.scheduler.check_invariants()

    def settle(self) -> None:
        """Whatever waits for the caller goes on."""
        for rank, request in self.paused:
            if not rank.requests[request].reason:
                rank.scheduler.resume(request)
        self.paused = []
        while self.transfers:
            self.end(self.transfers[0][0])

    def some(self, rank: Rank) -> int | None:
        live = [i for i, expected in rank.requests.items() if not expected.reason]
        return self.rng.choice(live) if live else None

    def add(self, rank: Rank) -> None:
        rng, longest = self.rng, rank.constants["kMaxModelLen"] - 2
        request, length = self.next_id, rng.choice([1, rng.randint(1, 8), rng.randint(1, longest)])
        self.next_id += 1
        if rank.constants["kEngineType"] == "COMPLETION" or (self.can_load(rank) and rng.random() < 0.3):
            rank.add_prompted(request, length, max_tokens=rng.randint(2, 40))
            return
        most = rng.randint(1, 40)
        ends = rng.sample(range(97), rng.choice([0, 3]))
        checkpoints = sorted(rng.sample(range(1, length), rng.randint(0, min(3, length - 1)))) if length > 1 else []
        rank.add(request, length, most, rng.randint(0, min(9, most)), ends, checkpoints)

    def can_load(self, rank: Rank) -> bool:
        return bool(rank.constants["kEngineType"] != "PROMPT")

    def fork(self, rank: Rank) -> None:
        parent = self.some(rank)
        if parent is None or not self.can_load(rank):
            return
        children = [self.next_id + i for i in range(self.rng.randint(1, 2))]
        before = rank.scheduler.fingerprint()
        try:
            rank.fork(parent, children)
        except ValueError:
            assert rank.scheduler.fingerprint() == before, "a refused fork changes nothing"
        self.next_id += 2

    def finish(self, rank: Rank) -> None:
        request = self.some(rank)
        if request is not None and self.rng.random() < 0.5:
            rank.finish(request, self.rng.choice([1, 3, 5]))

    def pause(self, rank: Rank) -> None:
        request = self.some(rank)
        if request is not None:
            rank.scheduler.pause(request)
            self.paused.append((rank, request))

    def resume(self, rank: Rank) -> None:
        for entry in [entry for entry in self.paused if entry[0] is rank]:
            self.paused.remove(entry)
            if not rank.requests[entry[1]].reason:
                rank.scheduler.resume(entry[1])

    def begin(self, rank: Rank) -> None:
        request = self.some(rank)
        loading = [*rank.loads, *(i for r, i, *_ in self.transfers if r is rank)]
        if request is None or request in loading or request not in rank.known:
            return
        try:
            rank.scheduler.begin_transfer(request)
        except ValueError:
            return  # it was preempted and waits
        blocks = rank.scheduler.blocks(request).tolist()
        expected = rank.requests[request]
        content = rank.device.content(blocks, expected.length - 1)
        computed = next((p for p, tag in enumerate(content) if tag != expected.prefix(p + 1)), len(content))
        self.transfers.append((rank, request, blocks, content[:computed]))

    def end(self, rank: Rank) -> None:
        for entry in [entry for entry in self.transfers if entry[0] is rank]:
            self.transfers.remove(entry)
            _, request, blocks, content = entry
            assert rank.device.content(blocks, len(content)) == content, f"B8: {request} is read from outside"
            rank.scheduler.end_transfer(request)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("deferred", [False, True])
def test_random_workload(make_world: Callable[..., World], engine: str, deferred: bool) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        world = make_world(engine, ranks=rng.choice([1, 1, 2, 3]), deferred=deferred, seed=seed)
        events = Events(world, rng)
        for _ in range(60):
            events()
            world.step()
        for _ in range(40):
            events.settle()
            world.step()
        world.drain()
