"""How two greedy texts are compared; the other side's choices are made up here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle.second_opinion_text import Text, compare_text

TEXT = Text(ids=[9, 9, 5, 6, 7], prompt=2, logprobs=[-0.5, -0.25, -1.0])


def answer(greedy: list[int], gap: float = 0.0, margin: float = 1.0) -> dict[str, Any]:
    logprob = np.array([-0.5, -0.25, -1.0], np.float32)
    return {
        "greedy": np.array(greedy), "gap": np.full(3, gap), "logprob": logprob, "margin": np.full(3, margin),
        "scale": np.array(2.0),
    }  # fmt: skip


def test_equal_texts() -> None:
    """A near-tie that decided nothing is none."""
    found = compare_text(TEXT, answer([5, 6, 7], margin=1e-9), "float32_unquantized")
    assert (found.agreed, found.verdict, found.largest) == (3, "equal", 0.0)


@pytest.mark.parametrize(
    ("policy", "gap", "margin", "verdict"),
    [
        ("float32_unquantized", 1e-4, 1.0, "near-tie"),
        ("float32_unquantized", 3e-4, 1.0, "DISAGREE"),
        ("float32_unquantized", 1.0, 1e-6, "near-tie"),
        ("float32", 1e-2, 1.0, "near-tie"),
        ("float32", 3e-2, 1.0, "DISAGREE"),
    ],
)
def test_texts_that_part(policy: str, gap: float, margin: float, verdict: str) -> None:
    """Gaps are judged beside logits of size 2; the first token that differs counts, what follows it does not."""
    found = compare_text(TEXT, answer([5, 0, 0], gap, margin), policy)
    assert (found.agreed, found.verdict, found.gap) == (1, verdict, gap)


def test_probabilities_are_compared_up_to_the_parting() -> None:
    other = answer([0, 6, 7], gap=1.0) | {"logprob": np.array([-0.75, -9.0, -9.0], np.float32)}
    assert compare_text(TEXT, other, "float32").largest == 0.25
