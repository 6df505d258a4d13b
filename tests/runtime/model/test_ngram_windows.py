"""N-grams of ragged rows with the host's history: however a sequence is cut into rows, they are those of its whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_model import PRIMES, VOCABULARY, rows, window, windows
from step_batch import Row, batch_of, padding_row

from deepinfer_gen.runtime.batch import ForwardBatch

SEEDS = st.integers(0, 2**32 - 1)


@dataclass
class Branch:
    """One sequence: its ids, of which the first ``done`` were computed."""

    ids: list[int]
    done: int = 0


def step_of(parts: Sequence[tuple[Sequence[int], int, int]], depth: int, padding: Sequence[int] = ()) -> ForwardBatch:
    """Rows of ``count`` ids from place ``start`` of a list, then padding rows."""
    return batch_of([*(Row(*part) for part in parts), *map(padding_row, padding)], history=depth)


class Schedule:
    """Random steps over branches: chunks of prompts, verified drafts, branching off, and beginning again."""

    def __init__(self, seed: int, depth: int) -> None:
        self.rng, self.depth = random.Random(seed), depth
        self.branches = [Branch(self.some(self.rng.choice((1, 2, depth, 30)))) for _ in range(3)]
        self.seen = {"chunk": 0, "verify": 0, "reject": 0, "fork": 0, "again": 0, "prefix": 0}

    def some(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def step(self) -> None:
        """One ragged step: all rows together, each checked against its own list."""
        rng = self.rng
        rng.shuffle(self.branches)
        parts, after = [], []
        for branch in self.branches[: rng.randint(1, len(self.branches))]:
            left = len(branch.ids) - branch.done
            if left > 1:
                count = rng.choice((1, left, rng.randint(1, left)))
                parts.append((branch.ids, branch.done, count))
                after.append((branch, count, []))
                self.seen["chunk"] += count < left
            else:  # the newest id, and drafts that may be wrong
                drafts = self.some(rng.randint(0, 4))
                parts.append((branch.ids + drafts, branch.done, left + len(drafts)))
                after.append((branch, left, drafts))
                self.seen["verify"] += bool(drafts)
        padding = [rng.randint(0, 3) for _ in range(rng.randint(0, 2))]
        self.check(parts, padding)
        for branch, count, drafts in after:
            branch.done += count
            if branch.done == len(branch.ids):
                accepted = rng.randint(0, len(drafts))
                branch.ids += [*drafts[:accepted], *self.some(1)]
                branch.done += accepted
                self.seen["reject"] += accepted < len(drafts)
        self.change()

    def check(self, parts: list[tuple[list[int], int, int]], padding: list[int]) -> None:
        found = windows(step_of(parts, self.depth, padding))
        expected = [window(ids, start + i, self.depth) for ids, start, count in parts for i in range(count)]
        expected += [window([0] * count, i, self.depth) for count in padding for i in range(count)]
        assert found.tolist() == expected
        assert torch.equal(rows(found), rows(expected))

    def change(self) -> None:
        rng = self.rng
        branch = rng.choice(self.branches)
        kind = rng.choice(("fork", "again", "prefix", "", ""))
        if kind == "fork" and len(self.branches) < 6:
            # A branch shares what was computed, wherever that ends, and goes its own way.
            self.branches.append(Branch(branch.ids[: branch.done] + self.some(rng.randint(1, 9)), branch.done))
            self.seen["fork"] += 1
        elif kind == "again":  # preempted: all is computed once more
            branch.done = 0
            self.seen["again"] += 1
        elif kind == "prefix":  # another request whose first ids are in the cache
            length = rng.randint(0, len(branch.ids))
            branch.ids, branch.done = branch.ids[:length] + self.some(rng.randint(1, 9)), length
            self.seen["prefix"] += length > 0


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_trap_20_chunks_prefixes_forks_and_rollbacks_do_not_change_the_rows(depth: int) -> None:
    seen: dict[str, int] = {}

    @settings(max_examples=25, deadline=None)
    @given(SEEDS)
    def run(seed: int) -> None:
        schedule = Schedule(seed, depth)
        for _ in range(15):
            schedule.step()
        for name, count in schedule.seen.items():
            seen[name] = seen.get(name, 0) + count

    run()
    assert min(seen.values()) > 10, seen


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), data=st.data())
def test_trap_20_any_cuts_equal_one_shot(ids: list[int], data: st.DataObject) -> None:
    """Every piece of a sequence in one step together, in any order, has the rows that one shot gives it."""
    cuts = sorted({0, len(ids), *data.draw(st.lists(st.integers(0, len(ids))))})
    pieces = data.draw(st.permutations(list(pairwise(cuts))))
    whole = rows(windows(step_of([(ids, 0, len(ids))], 3)))
    found = rows(windows(step_of([(ids, start, end - start) for start, end in pieces], 3)))
    assert torch.equal(found, torch.cat([whole[start:end] for start, end in pieces]))


def test_trap_20_an_end_token_inside_a_sequence_ends_nothing() -> None:
    """Only the start of a sequence brings pads: ids 0 (begin), 1 (end) and 2 (pad) inside it are ids like others."""
    for token in (0, 1, 2):
        ids = [5, token, 6, 7, 8]
        for cut in range(5):
            found = windows(step_of([(ids, cut, 5 - cut)], 3)).tolist()
            assert found == [window(ids, p, 3) for p in range(cut, 5)]


@pytest.mark.parametrize("padding", [[1], [3, 3, 2], [2, 0, 0]])
def test_padding_rows_stay_inside_the_table(padding: list[int]) -> None:
    """Their ids are 0, their sequences start: rows like any, in a step with others or alone."""
    total = sum(PRIMES[:6])
    for parts in ([], [([4, 9, 11], 1, 2)]):
        found = rows(windows(step_of(parts, 3, padding)))
        assert found.shape == (sum(padding) + 2 * len(parts), 6)
        assert found.min() >= 0
        assert found.max() < total
        alone = [rows([window([0] * count, i, 3)])[0] for count in padding for i in range(count)]
        assert torch.equal(found[2 * len(parts) :], torch.stack(alone))
