"""Verification lengths of the compiled headers: equal to the exact model, near the optimum, refusals with values."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from verification_model import Config, Row, VerificationModel, survivals
from verification_policy import Policy, config_count

VARLEN = range(7)
SIXTY = 4  # 60 rows of 5 drafts, a graph every 8 tokens
LARGEST = 9


def random_confidence(rng: random.Random) -> int:
    """Mostly ordinary, often equal to others or at an end of the range."""
    kind = rng.random()
    if kind < 0.15:
        return rng.choice([0, 1, 65534, 65535])
    if kind < 0.4:
        return rng.choice([32768, 52428, 60000])
    return min(65535, int(65536 * rng.random() ** 0.4))


def random_rows(config: Config, rng: random.Random, count: int) -> list[Row]:
    all_drafts, all_known, provisional = (rng.random() < 0.5 for _ in range(3))
    repeated = [random_confidence(rng) for _ in range(config.nextn)] if rng.random() < 0.2 else None

    def data(known: float) -> list[int] | None:
        drawn = repeated or [random_confidence(rng) for _ in range(config.nextn)]
        return drawn if all_known or rng.random() < known else None

    return [
        Row(
            config.nextn if all_drafts else rng.randint(0, config.nextn),
            data(0.7),
            None if provisional else data(0.5),
        )
        for _ in range(count)
    ]


def random_curve(config: Config, rng: random.Random) -> list[float]:
    """Affine, or any rising one; often many totals are nearly as good."""
    if rng.random() < 0.6:
        base, slope = rng.uniform(0.1, 20), rng.uniform(0.001, 1)
        curve = [base + slope * size for size in config.sizes]
    else:
        curve = list(1 + np.cumsum([rng.choice([0.0, rng.random()]) for _ in config.sizes]))
    curve[-1] = max(curve[-1], 1.06 * curve[0])
    return curve


@pytest.mark.parametrize("index", range(config_count()))
def test_choose_equals_the_exact_model(index: int) -> None:
    rng = random.Random(index)
    for _ in range(3 if index == LARGEST else 12):
        policy = Policy(index)
        config, model = policy.config, VerificationModel(policy.config)
        if config.varlen:
            curve = random_curve(config, rng)
            policy.set_curve(curve)
            model.set_curve(curve)
        for _ in range(8 if index == LARGEST else 60):
            rows = random_rows(config, rng, rng.randint(0, config.max_num_seqs))
            # An agreed graph, or for ragged ranks mostly none.
            sizes = config.sizes if config.padded or rng.random() < 0.3 else [config.max_total_q]
            limit = rng.choice([size for size in sizes if size >= len(rows)])
            assert policy.choose(rows, limit) == model.choose(rows, limit)
            for _ in range(rng.choice([0, 1, 1, 130])):
                size = rng.choice(config.sizes)
                count = rng.randint(0, min(size, config.max_num_seqs))
                times = rng.uniform(0, 40), rng.choice([0.0, rng.random()])
                policy.observe(size, count, *times)
                model.observe(size, count, *times)
            asking = rng.randint(0, config.max_num_seqs)
            assert policy.wish(asking) == model.wish(asking)


@pytest.mark.parametrize("index", [0, 2, 3, 7, 8])
def test_no_cost_is_needed_to_ask_for_a_graph(index: int) -> None:
    """Before a curve is set all drafts count, and no rows ask for the smallest graph."""
    policy = Policy(index)
    for rows in range(policy.config.max_num_seqs + 1):
        assert policy.wish(rows) == policy.config.graph(rows * (policy.config.nextn + 1))
    assert policy.wish(0) == policy.config.sizes[0]


@pytest.mark.parametrize("index", [0, 2, 4])
def test_i15_a_row_verifies_a_prefix_of_its_drafts(index: int) -> None:
    """The drafts that come first in the order are, row by row, the first ones; the policy counts just these."""
    rng = random.Random(index)
    policy = Policy(index)
    config = policy.config
    for _ in range(60):
        caps = [rng.randint(0, config.nextn) for _ in range(rng.randint(1, config.max_num_seqs))]
        confidences = np.array([[random_confidence(rng) for _ in range(config.nextn)] for _ in caps], np.uint16)
        rows = [survivals(row, cap) for row, cap in zip(confidences.tolist(), caps, strict=True)]
        order = sorted((-survival, k, r) for r, row in enumerate(rows) for k, survival in enumerate(row))
        count = rng.randint(0, len(order))
        queries = policy.split(caps, confidences, len(caps) + count)
        for r, length in enumerate(queries):
            assert sorted(k for _, k, row in order[:count] if row == r) == list(range(length - 1))


@pytest.mark.parametrize("index", [5, 6, 7])
def test_b19_what_a_rank_asks_for_depends_on_nothing_that_it_measured(index: int) -> None:
    """Ranks with one curve and equally many rows ask for one graph, whatever their clocks and drafts have said."""
    rng = random.Random(index)
    fresh, worn = Policy(index), Policy(index)
    config = fresh.config
    if config.varlen:
        curve = random_curve(config, rng)
        fresh.set_curve(curve)
        worn.set_curve(curve)
    for _ in range(200):
        rows = random_rows(config, rng, rng.randint(1, config.max_num_seqs))
        limit = rng.choice([size for size in config.sizes if size >= len(rows)])
        assert sum(worn.choose(rows, limit)) + len(rows) <= limit, "B14: never over the agreed graph"
        worn.observe(rng.choice(config.sizes), 1, rng.uniform(0, 100), rng.uniform(0, 10))
    for count in range(config.max_num_seqs + 1):
        assert worn.wish(count) == fresh.wish(count)


def throughputs(known: np.ndarray, config: Config, curve: np.ndarray) -> np.ndarray:
    """Tokens expected per millisecond for every total from the rows alone to all drafts."""
    columns, survival = [], np.full(len(known), 65536, np.int64)
    for column in known.T:
        survival = (survival * column) >> 16
        columns.append(survival)
    ranked = np.sort(np.concatenate(columns))[::-1]
    expected = len(known) + np.concatenate([[0], np.cumsum(ranked)]) / 65536
    totals = np.arange(len(known), len(known) + ranked.size + 1)
    return expected / curve[np.searchsorted(config.sizes, totals)]


def test_the_total_is_optimal_and_never_worse_than_all_or_nothing() -> None:
    """10,000 cases against the best of all totals, not only of those that fill their graph."""
    rng = np.random.default_rng(3)
    policy = Policy(SIXTY)
    config = policy.config
    worst = 1.0
    for case in range(10_000):
        if case % 50 == 0:
            curve = np.cumsum(rng.random(len(config.sizes)) ** rng.integers(1, 8)) + rng.uniform(0.5, 20)
            curve[-1] *= 1.06
            policy = Policy(SIXTY)
            policy.set_curve(curve.tolist())
        rows = int(rng.integers(1, config.max_num_seqs + 1))
        drawn = rng.random((rows, config.nextn)) ** rng.choice([0.1, 0.4, 2])
        known = np.minimum(65535, 65536 * drawn).astype(np.uint16)
        yes, no = np.ones(rows, np.uint8), np.zeros(rows, np.uint8)
        caps = np.full(rows, config.nextn, np.int32)
        drafts = policy.choose_arrays(caps, known, yes, known, no, config.max_total_q)
        rates = throughputs(known, config, curve)
        reached = rates[int(drafts.sum())]
        worst = min(worst, reached / rates.max())
        assert reached >= rates[0]
        assert reached >= rates[-1]
    assert worst >= 0.999


def test_min_gain_keeps_the_length_uniform_with_hysteresis() -> None:
    policy = Policy(3)  # six rows of five drafts, a graph every 4 tokens, a least gain of 10 %
    curve = [10.0 + size for size in policy.config.sizes]
    policy.set_curve(curve)
    everything = [policy.config.nextn] * 6

    def drafts(confidence: int) -> list[int]:
        return policy.choose([Row(5, [confidence] * 5)] * 6, policy.config.max_total_q)

    model = VerificationModel(policy.config)
    model.set_curve(curve)
    gains = {confidence: gain_of(model, confidence) for confidence in range(0, 65536, 500)}
    between = next(c for c, gain in gains.items() if 0.05 <= gain < 0.1)
    above = next(c for c, gain in gains.items() if gain >= 0.1)
    below = next(c for c, gain in gains.items() if gain < 0.05)
    initial = policy.fingerprint()
    assert drafts(between) == everything, "10 % were not reached yet"
    assert drafts(above) != everything
    assert policy.fingerprint() != initial
    assert drafts(between) != everything, "5 % are enough to stay"
    assert drafts(below) == everything
    assert drafts(between) == everything
    assert policy.fingerprint() == initial
    drafts(above)
    policy.restart()
    assert policy.fingerprint() == initial


def gain_of(model: VerificationModel, confidence: int) -> float:
    """By which the best total of six equal rows exceeds all drafts."""
    ranked = sorted(survivals([confidence] * 5, 5) * 6, reverse=True)
    totals = [size for size in model.config.sizes if size >= 6]
    rates = [(6 + sum(ranked[: t - 6]) / 65536) / model.cost(model.config.graph(t), 6) for t in totals]
    return max(rates) / rates[-1] - 1


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([1.0, 2.0], "2 durations for 5 graph sizes"),
        ([1.0, 2.0, 3.0, 4.0, float("nan")], "nan ms at graph size 128; a duration lies between"),
        ([1.0, 2.0, 3.0, 4.0, float("inf")], "inf ms at graph size 128"),
        ([0.0, 2.0, 3.0, 4.0, 5.0], r"0\.000000 ms at graph size 3"),
        ([-1.0, 2.0, 3.0, 4.0, 5.0], r"-1\.000000 ms at graph size 3"),
        ([1.0, 3.0, 2.0, 4.0, 5.0], r"falls from 3\.000000 ms at graph size 10 to 2\.000000 ms at graph size 11"),
        ([1.0, 1.01, 1.02, 1.03, 1.049], r"flat: from 1\.000000 ms at graph size 3 to 1\.049000 ms at graph size 128"),
    ],
)
def test_a_curve_that_tells_nothing_is_refused_with_its_values(curve: list[float], words: str) -> None:
    policy = Policy(2)
    good = [1.0, 2.0, 2.0, 3.0, 9.0]
    policy.set_curve(good)
    rows = random_rows(policy.config, random.Random(1), 9)
    before = policy.choose(rows, 128)
    with pytest.raises(ValueError, match=words):
        policy.set_curve(curve)
    assert policy.choose(rows, 128) == before, "the old curve stays"


def test_a_curve_of_five_percent_is_steep_enough_and_one_size_cannot_be_flat() -> None:
    Policy(2).set_curve([1.0, 1.0, 1.0, 1.0, 1.05])
    Policy(1).set_curve([1.0])


def test_a_fixed_policy_takes_no_curve() -> None:
    with pytest.raises(ValueError, match="always verifies all drafts"):
        Policy(8).set_curve([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ((4, 1, 1.0, 1.0), "no graph has size 4"),
        ((0, 0, 1.0, 1.0), "no graph has size 0"),
        ((129, 1, 1.0, 1.0), "no graph has size 129"),
        ((3, 4, 1.0, 1.0), "4 rows in a graph of size 3"),
        ((50, 17, 1.0, 1.0), "17 rows in a graph of size 50"),
        ((50, -1, 1.0, 1.0), "-1 rows"),
        ((50, 1, float("nan"), 1.0), "forward nan ms"),
        ((50, 1, 1.0, -1.0), r"sampler -1\.000000 ms"),
    ],
)
def test_an_impossible_observation_is_refused_with_its_values(
    observation: tuple[int, int, float, float], words: str
) -> None:
    policy = Policy(2)
    policy.set_curve([1.0, 2.0, 2.0, 3.0, 9.0])
    with pytest.raises(ValueError, match=words):
        policy.observe(*observation)


def counted(rows: int, nextn: int) -> np.ndarray:
    return np.zeros((rows, nextn), np.uint16)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.split([1] * 17, counted(17, 7), 20), "17 rows, but the engine holds 16"),
        (lambda p: p.split([1, 8], counted(2, 7), 3), "a cap of 8, but a row has 0 to 7 drafts"),
        (lambda p: p.split([1, -1], counted(2, 7), 3), "a cap of -1"),
        (lambda p: p.split([1, 1], counted(2, 6), 3), "12 confidences for 2 rows of 7 drafts"),
        (lambda p: p.split([1, 1], counted(2, 7), 1), "a total of 1 for 2 rows with 2 drafts"),
        (lambda p: p.split([1, 1], counted(2, 7), 5), "a total of 5 for 2 rows with 2 drafts"),
    ],
)
def test_an_impossible_split_is_refused_with_its_values(call: Callable[[Policy], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(Policy(2))
