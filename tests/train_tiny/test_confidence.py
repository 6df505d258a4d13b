"""Confidence figures against plain loops, and temperatures against those that made the data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from confidence import (
    FILE_NAME,
    area_under_curve,
    calibration_error,
    conditional,
    cumulative,
    fit_temperature,
    fit_temperatures,
    pooled,
    read_temperatures,
    sigmoid,
    write_temperatures,
)
from drafts import Rounds


def test_area_under_curve_counts_the_pairs() -> None:
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 12, 200) / 4
    labels = rng.random(200) < sigmoid(scores - 1)
    pairs = [float(p > n) + float(p == n) / 2 for p in scores[labels] for n in scores[~labels]]
    assert area_under_curve(scores, labels) == pytest.approx(np.mean(pairs))
    assert area_under_curve(np.array([1.0, 2.0, 3.0]), np.array([False, False, True])) == 1
    assert math.isnan(area_under_curve(scores, np.ones(200, bool)))


def test_calibration_error_bins_equal_masses() -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.random(203)
    labels = rng.random(203) < probabilities**2
    pairs = sorted(zip(probabilities.tolist(), labels.tolist(), strict=True))
    sizes = [14] * 8 + [13] * 7
    total, start = 0.0, 0
    for size in sizes:
        bin_ = pairs[start : start + size]
        total += abs(sum(p for p, _ in bin_) - sum(label for _, label in bin_)) / 203
        start += size
    assert calibration_error(probabilities, labels) == pytest.approx(total)
    assert calibration_error(np.full(100, 0.3), np.arange(100) < 30, bins=1) == pytest.approx(0)


def rounds_with(temperatures: list[float], count: int, seed: int) -> Rounds:
    """Rounds whose drafts are accepted with sigmoid(logit / temperature) as long as those before them were."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(1.5, 3, (count, len(temperatures)))
    right = rng.random(logits.shape) < sigmoid(logits / np.array(temperatures))
    accepted = np.cumprod(right, axis=1).sum(axis=1)
    return Rounds(accepted, np.full(count, len(temperatures)), logits)


def test_temperatures_are_recovered_and_calibrate_the_product() -> None:
    true = [0.5, 1.0, 3.0]
    rounds = rounds_with(true, 40_000, 3)
    found = fit_temperatures(rounds)
    assert found == pytest.approx(true, rel=0.08)
    assert calibration_error(*cumulative(rounds, [1.0] * 3)) > 0.02
    assert calibration_error(*cumulative(rounds_with(true, 40_000, 4), found)) < 0.01


def test_the_fit_is_the_least_log_loss() -> None:
    logits, labels = np.array([2.0, 1.0, -1.0, 0.5]), np.array([True, False, False, True])
    best = fit_temperature(logits, labels)

    def loss(t: float) -> float:
        return sum(math.log1p(math.exp(-z / t if y else z / t)) for z, y in zip(logits, labels, strict=True))

    grid = [math.exp(x / 1000) for x in range(-4000, 4000)]
    assert best == pytest.approx(min(grid, key=loss), rel=1e-3)
    assert fit_temperature(np.array([3.0]), np.array([False])) == pytest.approx(64), "no better than a coin"
    assert fit_temperature(np.array([]), np.array([], bool)) == 1


def test_what_stands_behind_a_rejected_draft_or_eos_is_not_asked() -> None:
    """Round 0 rejects draft 1; round 1 ends with eos as its first draft; round 2 accepts all."""
    logits = np.arange(9.0).reshape(3, 3)
    rounds = Rounds(np.array([1, 1, 3]), np.array([3, 1, 3]), logits)
    asked = [conditional(rounds, k) for k in range(3)]
    assert [z.tolist() for z, _ in asked] == [[0, 3, 6], [1, 7], [8]]
    assert [y.tolist() for _, y in asked] == [[True, True, True], [False, True], [True]]
    z, y = pooled(rounds, [1.0, 2.0, 4.0])
    assert z.tolist() == [0, 3, 6, 0.5, 3.5, 2]
    assert y.tolist() == [True, True, True, False, True, True]
    p, reached = cumulative(rounds, [1.0, 1.0, 1.0])
    assert reached.tolist() == [True, False, False, True, True, True, True]
    s = 1 / (1 + np.exp(-logits))
    expected = [
        s[0, 0],
        s[0, 0] * s[0, 1],
        s[0, 0] * s[0, 1] * s[0, 2],
        s[1, 0],
        s[2, 0],
        s[2, 0] * s[2, 1],
        s[2].prod(),
    ]
    np.testing.assert_allclose(p, expected)


def test_the_file_of_temperatures(tmp_path: Path) -> None:
    assert read_temperatures(tmp_path, 2) is None
    write_temperatures(tmp_path, [0.5, 1.25], "these rounds")
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {
        "nextn": 2,
        "temperatures": [0.5, 1.25],
        "fitted_on": "these rounds",
    }
    assert read_temperatures(tmp_path, 2) == [0.5, 1.25]
    with pytest.raises(ValueError, match="2 temperatures for 2 drafts, not 5"):
        read_temperatures(tmp_path, 5)
