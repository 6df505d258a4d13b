"""Verification lengths are lossless, counted out exactly through the compiled policies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from lossless_toys import TARGET, Confidences, confidence, enumerate_rounds, verify
from verification_model import Row
from verification_policy import Policy

TOY = 10  # two rows of three drafts, a graph of every size
STEPS_PER_SECOND = (1.0, 0.5, 0.45)
SIXTEEN, SIXTY = 2, 4


def toy_policy(milliseconds: Sequence[float]) -> Policy:
    """``milliseconds`` of the first sizes; the others take so long that they are never worth it."""
    policy = Policy(TOY)
    policy.set_curve([*milliseconds, *[1000.0] * (len(policy.config.sizes) - len(milliseconds))])
    return policy


def r2_confidences(drafts: Sequence[int]) -> Confidences:
    """Draft 1 survives with 0.8; draft 2 with 0.9 after A and never after B."""
    return (confidence(0.8), confidence(0.9) if drafts[0] == 0 else 0, 0)


class Rule:
    """Who verifies what: the lagged rule, or the one that lets the newest confidences choose the total as well."""

    def __init__(self, policy: Policy, nextn: int, *, lagged: bool) -> None:
        self.policy, self.nextn, self.lagged = policy, nextn, lagged
        self.decide = cache(self._decide)

    def _decide(self, before: tuple[Confidences | None, ...], newest: tuple[Confidences, ...]) -> list[int]:
        data = before if self.lagged else newest
        rows = [Row(self.nextn, known, new) for known, new in zip(data, newest, strict=True)]
        return self.policy.choose(rows, self.policy.config.max_total_q)


@pytest.mark.parametrize(("lagged", "expected"), [(True, 0.7), (False, 0.85)])
def test_r2_only_the_lagged_total_is_lossless(lagged: bool, expected: float) -> None:
    rule = Rule(toy_policy([1 / rate for rate in STEPS_PER_SECOND]), 2, lagged=lagged)
    first = enumerate_rounds(rule.decide, r2_confidences, rows=1, nextn=2, tokens=1)
    assert abs(float(first[((0,),)]) - expected) < 1e-12


def test_r2_three_tokens_have_the_target_distribution_exactly() -> None:
    rule = Rule(toy_policy([1 / rate for rate in STEPS_PER_SECOND]), 2, lagged=True)
    found = enumerate_rounds(rule.decide, r2_confidences, rows=1, nextn=2, tokens=3)
    assert found == {((a, b, c),): TARGET[a] * TARGET[b] * TARGET[c] for a, b, c in product(range(2), repeat=3)}
    assert {rule.decide((r2_confidences(d),), (r2_confidences(d),))[0] for d in ((0, 0), (1, 0))} == {0, 2}


def test_r2_two_rows_that_share_a_total_stay_independent() -> None:
    """Each row's confidence decides how many drafts the other may verify, and neither changes what it says."""

    def confide(drafts: Sequence[int]) -> Confidences:
        return (confidence(0.8), confidence(0.97) if drafts[0] == 0 else confidence(0.3), 0)

    rule = Rule(toy_policy([1.5, 2.0, 2.5, 3.3, 3.5, 4.4]), 2, lagged=True)
    found = enumerate_rounds(rule.decide, confide, rows=2, nextn=2, tokens=2)
    tokens = list(product(range(2), repeat=2))
    assert found == {
        (left, right): TARGET[left[0]] * TARGET[left[1]] * TARGET[right[0]] * TARGET[right[1]]
        for left in tokens
        for right in tokens
    }
    high, low = confide((0, 0)), confide((1, 0))
    lengths = {tuple(rule.decide((before,) * 2, (high, low))) for before in (None, high, low)}
    assert any(left != right for left, right in lengths), "the toy really splits unevenly"
    assert len({sum(pair) for pair in lengths}) > 1, "the toy really varies the total"


def admitted(survivals: Sequence[Sequence[float]], count: int, *, later_first: bool) -> list[int]:
    """A row's drafts among the first ``count``, by floating-point products; ties by position, either way."""
    sign = -1 if later_first else 1
    order = sorted((-s, sign * k, sign * r) for r, row in enumerate(survivals) for k, s in enumerate(row))
    return [sum(abs(r) == row for _, _, r in order[:count]) for row in range(len(survivals))]


def test_r1_equal_products_of_one_request_need_a_tie_order_by_position() -> None:
    """A confidence of exactly 1 makes two products of one row equal; then the later token must not help the earlier."""

    rival = [0.8, 0.0]
    certain, doubtful = [0.8, 0.8 * 1.0], [0.8, 0.8 * 0.5]
    for count in (1, 2, 3):
        for row, other in ((0, [rival]), (1, [])):
            by_position = [
                admitted([*([rival] if row else []), own, *other], count, later_first=False)[row] > 0
                for own in (certain, doubtful)
            ]
            assert by_position[0] == by_position[1]
    assert admitted([certain, rival], 1, later_first=True) == [1, 0]
    assert admitted([doubtful, rival], 1, later_first=True) == [0, 1]


def unstable_split(survivals: np.ndarray, count: int) -> np.ndarray:
    """Quickselect, the smaller to the front: of equals it takes those that its swaps have left behind."""
    keys = survivals.ravel()
    order, low, high, first = list(range(keys.size)), 0, keys.size - 1, keys.size - count
    while low < high:
        pivot, front = keys[order[high]], low
        for i in range(low, high):
            if keys[order[i]] < pivot:
                order[front], order[i] = order[i], order[front]
                front += 1
        order[front], order[high] = order[high], order[front]
        if front == first:
            break
        low, high = (low, front - 1) if front > first else (front + 1, high)
    return np.bincount(np.array(order[first:]) // survivals.shape[1], minlength=len(survivals))


def test_r1_the_order_of_ties_does_not_depend_on_values() -> None:
    """Confidences behind a row's first draft change; its admission must not. An unstable selection fails this."""
    rng = np.random.default_rng(1)
    policy = Policy(SIXTEEN)
    nextn, rows = policy.config.nextn, policy.config.max_num_seqs
    few = np.array([65535, 60000, 30000, 0], np.uint16)
    unstable_changes = 0
    for _ in range(300):
        confidences = rng.choice(few, (rows, nextn))
        confidences[:, 0] = 60000
        other, row = confidences.copy(), int(rng.integers(rows))
        other[row, 1:] = rng.choice(few, nextn - 1)
        count = int(rng.integers(1, rows))  # the last one taken is one of many equals
        queries = [policy.split([nextn] * rows, data, rows + count) for data in (confidences, other)]
        assert (queries[0][row] > 1) == (queries[1][row] > 1)
        products = [np.cumprod(data.astype(np.int64) / 65535, axis=1) for data in (confidences, other)]
        unstable = [unstable_split(data, count)[row] > 0 for data in products]
        unstable_changes += unstable[0] != unstable[1]
    assert unstable_changes > 0, "the test can tell"


def changed_behind(rng: random.Random, row: list[int], position: int) -> list[int]:
    """What may follow when the draft at ``position`` has another value: all confidences behind its own are new."""
    return row[: position + 1] + [random_confidence(rng) for _ in row[position + 1 :]]


def random_confidence(rng: random.Random) -> int:
    return rng.choice([0, 1, 32768, 52428, 65534, 65535, rng.randrange(65536)])


def own_admission_changes(policy: Policy, rng: random.Random, *, lagged: bool, cases: int) -> int:
    """In how many random cases another value of a draft changes whether that draft is verified."""
    nextn, changes = policy.config.nextn, 0
    for _ in range(cases):
        count = rng.randint(1, min(policy.config.max_num_seqs, 12))
        before = [[random_confidence(rng) for _ in range(nextn)] for _ in range(count)]
        newest = [[random_confidence(rng) for _ in range(nextn)] for _ in range(count)]
        caps = [rng.randint(0, nextn) for _ in range(count)]
        row, position = rng.randrange(count), rng.randrange(nextn)
        other = [*newest[:row], changed_behind(rng, newest[row], position), *newest[row + 1 :]]
        verified = []
        for data in (newest, other):
            known = before if lagged else data
            rows = [Row(cap, k, s) for cap, k, s in zip(caps, known, data, strict=True)]
            verified.append(policy.choose(rows, policy.config.max_total_q)[row] > position)
        changes += verified[0] != verified[1]
    return changes


@pytest.mark.parametrize("index", [SIXTEEN, SIXTY])
def test_r2_a_drafts_value_never_changes_its_own_admission(index: int) -> None:
    policy = Policy(index)
    policy.set_curve([3.0 + 0.5 * size for size in policy.config.sizes])
    rng = random.Random(5)
    assert own_admission_changes(policy, rng, lagged=True, cases=1500) == 0
    assert own_admission_changes(policy, rng, lagged=False, cases=1500) > 0, "the test can tell"


def test_the_toy_verifies_as_speculative_sampling_does() -> None:
    """One draft verified: the emitted token has the target's probability, whatever the draft's was."""
    total = [Fraction(0), Fraction(0)]
    for draft in (0, 1):
        for output, probability in verify((draft,), 1):
            total[output[0]] += probability / 2
    assert tuple(total) == TARGET
