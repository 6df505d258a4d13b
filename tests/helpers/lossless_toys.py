"""Toy models on which whether verification is lossless can be counted out: two tokens, known probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product

TARGET = (Fraction(7, 10), Fraction(3, 10))
DRAFT = (Fraction(1, 2), Fraction(1, 2))
RESIDUAL = (Fraction(1), Fraction(0))
"""What a rejected draft is replaced from: max(target - draft, 0), normalised."""

Confidences = tuple[int, ...]
Decide = Callable[[Sequence[Confidences | None], Sequence[Confidences]], Sequence[int]]
"""(confidences before the newest, newest confidences) of all rows to the drafts that each row verifies."""


def confidence(probability: float) -> int:
    return round(probability * 65535)


def verify(drafts: Sequence[int], count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Every output of a row that verifies the first ``count`` of ``drafts``, with its probability."""
    certain = Fraction(1)
    for k in range(count):
        accepted = min(Fraction(1), TARGET[drafts[k]] / DRAFT[drafts[k]])
        for token, probability in enumerate(RESIDUAL):
            if accepted < 1 and probability:
                yield (*drafts[:k], token), certain * (1 - accepted) * probability
        certain *= accepted
    for token, probability in enumerate(TARGET):
        yield (*drafts[:count], token), certain * probability


def enumerate_rounds(
    decide: Decide,
    confide: Callable[[Sequence[int]], Confidences],
    *,
    rows: int,
    nextn: int,
    tokens: int,
) -> dict[tuple[tuple[int, ...], ...], Fraction]:
    """The exact distribution of the first ``tokens`` tokens of all rows; ``confide`` gives a row's confidences."""
    result: dict[tuple[tuple[int, ...], ...], Fraction] = {}
    states = {(((),) * rows, (None,) * rows): Fraction(1)}
    while states:
        later: dict[tuple[tuple[tuple[int, ...], ...], tuple[Confidences | None, ...]], Fraction] = {}
        for (outputs, before), weight in states.items():
            if all(len(output) >= tokens for output in outputs):
                cut = tuple(output[:tokens] for output in outputs)
                result[cut] = result.get(cut, Fraction(0)) + weight
                continue
            for drafts in product(product(range(2), repeat=nextn), repeat=rows):
                newest = tuple(confide(row) for row in drafts)
                drawn = weight * Fraction(1, 2) ** (nextn * rows)
                verified = decide(before, newest)
                for ends in product(*(list(verify(d, v)) for d, v in zip(drafts, verified, strict=True))):
                    chance = drawn
                    for _, probability in ends:
                        chance *= probability
                    after = tuple((o + e)[:tokens] for o, (e, _) in zip(outputs, ends, strict=True))
                    state = (after, newest)
                    later[state] = later.get(state, Fraction(0)) + chance
        states = later
    return result
