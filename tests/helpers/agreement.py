"""Whether two float32 forward passes agree, or part where a choice was a near-tie for rounding to decide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the root mean square of the other side's."""

NEAR_TIE = 1e-5
"""Relative distance below which rounding may decide a choice; some tens of float32 roundings."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """``largest`` and ``typical`` (median over rows of the row's largest) are absolute; ``agreed`` rows come first."""

    rows: int
    agreed: int
    largest: float
    typical: float
    relative: float
    argmax: float
    margin: float

    @property
    def verdict(self) -> str:
        """``agree``, ``near-tie`` (at the first row that differs), or ``DISAGREE``."""
        if self.agreed == self.rows:
            return "agree"
        return "near-tie" if self.margin < NEAR_TIE else "DISAGREE"


def compare(ours: NDArray[np.float32], other: NDArray[np.float32], margin: NDArray[np.float32]) -> Agreement:
    """Compare logits [n, vocab_size] row by row; ``margin`` [n] is how narrowly the choices of each row were decided.

    A choice that rounding turns changes its own row first, and then later ones through the caches. Rows that are not
    finite differ.
    """
    if ours.shape != other.shape:
        raise ValueError(f"logits have the shapes {ours.shape} and {other.shape}")
    scale = float(np.sqrt(np.mean(np.square(other, dtype=np.float64))))
    difference = np.abs(ours.astype(np.float64) - other).max(1)
    beyond = np.flatnonzero(~(difference <= TOLERANCE * scale))
    agreed = int(beyond[0]) if beyond.size else len(ours)
    return Agreement(
        rows=len(ours),
        agreed=agreed,
        largest=float(difference.max()),
        typical=float(np.median(difference)),
        relative=float(difference.max()) / scale,
        argmax=float(np.mean(ours.argmax(1) == other.argmax(1))),
        margin=float(margin[agreed]) if beyond.size else float(margin.min()),
    )
