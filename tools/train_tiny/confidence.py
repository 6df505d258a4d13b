"""How well the confidence head foretells acceptance, and the temperatures that make its probabilities true.

Draft k of a round has the logit z_k; sigmoid(z_k / T_k) is the probability that it is accepted if all before it are,
and the product of the first k + 1 of them the probability that at least k + 1 drafts are accepted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from drafts import Rounds
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FILE_NAME = "confidence_temperatures.json"
"""Stands beside the weights."""
BINS = 15
_COLDEST, _WARMEST = 1 / 64, 64.0
_WIDTH = 1e-6
_GOLDEN = (math.sqrt(5) - 1) / 2


def conditional(rounds: Rounds, position: int) -> tuple[Floats, Flags]:
    """Logits of draft ``position`` where all before it were accepted, and whether it was too."""
    asked = (rounds.accepted >= position) & (rounds.observed > position)
    return rounds.confidence_logits[asked, position], rounds.accepted[asked] > position


def pooled(rounds: Rounds, temperatures: Sequence[float]) -> tuple[Floats, Flags]:
    """``conditional`` of all positions together, each logit divided by its position's temperature."""
    parts = [conditional(rounds, k) for k in range(len(temperatures))]
    logits: Floats = np.concatenate([part / t for (part, _), t in zip(parts, temperatures, strict=True)])
    return logits, np.concatenate([labels for _, labels in parts])


def cumulative(rounds: Rounds, temperatures: Sequence[float]) -> tuple[Floats, Flags]:
    """Of every round and k whose answer is known: the probability that at least k + 1 are accepted, and whether."""
    products = np.asarray(np.cumprod(sigmoid(rounds.confidence_logits / np.array(temperatures)), axis=1), np.float64)
    positions = np.arange(products.shape[1])
    known = positions < rounds.observed[:, np.newaxis]
    return products[known], (positions < rounds.accepted[:, np.newaxis])[known]


def area_under_curve(scores: Floats, labels: Flags) -> float:
    """Probability that a positive scores above a negative, ties counted half; NaN where one kind is missing."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    ranks = float(mean_ranks[inverse][labels].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def calibration_error(probabilities: Floats, labels: Flags, bins: int = BINS) -> float:
    """Expected calibration error: the mean over ``bins`` of equal mass of |mean probability - share of positives|."""
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    gaps = [len(part) * abs(probabilities[part].mean() - labels[part].mean()) for part in parts]
    return float(sum(gaps) / len(order))


def fit_temperature(logits: Floats, labels: Flags) -> float:
    """The T between 1/64 and 64 that minimises the log loss of sigmoid(logits / T); 1 where there is nothing to fit."""
    if not len(logits):
        return 1.0
    signed = np.where(labels, -logits, logits)
    # The loss is convex in 1 / T, so along log T it has one valley.
    return math.exp(
        _golden_section(
            lambda log_t: float(np.logaddexp(0, signed / math.exp(log_t)).mean()),
            math.log(_COLDEST),
            math.log(_WARMEST),
        )
    )


def fit_temperatures(rounds: Rounds) -> list[float]:
    """One temperature for each position."""
    return [fit_temperature(*conditional(rounds, k)) for k in range(rounds.confidence_logits.shape[1])]


def write_temperatures(folder: Path, temperatures: Sequence[float], fitted_on: str) -> Path:
    """Write the file of the checkpoint ``folder``; ``fitted_on`` says what they were fitted on."""
    content = {
        "nextn": len(temperatures),
        "temperatures": [round(t, 4) for t in temperatures],
        "fitted_on": fitted_on,
    }
    path = folder / FILE_NAME
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def read_temperatures(folder: Path, nextn: int) -> list[float] | None:
    """The temperatures of the checkpoint ``folder``; None where it has none. ``ValueError`` for another ``nextn``."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    temperatures = [float(t) for t in content["temperatures"]]
    if content["nextn"] != nextn or len(temperatures) != nextn:
        raise ValueError(f"{path} holds {len(temperatures)} temperatures for {content['nextn']} drafts, not {nextn}")
    return temperatures


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))


def _golden_section(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley between ``low`` and ``high`` is least, to ``_WIDTH``."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > _WIDTH:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
