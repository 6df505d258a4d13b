"""Drafting behind a truncated prompt: target features and draft rings of the live rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from draft_and_verify import draft, observed, speculate

MakeDriver = Callable[..., Any]
TOLERANCE = 1e-4


def prefilled(driver: Any, ids: Any, chunk: int) -> tuple[Any, int]:
    """A sequence whose prompt has run, and its first greedy token."""
    sequence = driver.add(ids)
    while sequence.done < len(ids):
        count = min(chunk, len(ids) - sequence.done)
        wanted = [count - 1] if sequence.done + count == len(ids) else []
        logits = driver.step([(sequence, count)], outputs=torch.tensor(wanted, dtype=torch.int64))
    return sequence, int(logits[0].argmax())


@pytest.mark.parametrize("targets", [(7, 8, 9), (2, 3, 5), (6, 7, 9)])
def test_drafts_of_both_modes_and_of_chunks_are_equal(
    targets: tuple[int, ...], truncated: MakeDriver, oracle: Mapping[str, Any]
) -> None:
    """Targets behind the cut, before it, and from it on. Rings are full of NaN where nothing was stored."""
    found = []
    for mode, chunk in (("compact", 300), ("mask", 300), ("compact", 128)):
        driver = truncated(mode, 6, 140, targets)
        sequence, first = prefilled(driver, oracle["p300_ids"], chunk)
        drafts = draft(driver, [sequence], [first])
        tokens = speculate(driver, [sequence], [first], 8)[0].tokens[:8]
        found.append((drafts, tokens))
    for drafts, tokens in found[1:]:
        assert drafts.ids.tolist() == found[0][0].ids.tolist()
        np.testing.assert_allclose(drafts.logits, found[0][0].logits, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(drafts.confidence_logits, found[0][0].confidence_logits, rtol=0, atol=TOLERANCE)
        assert tokens == found[0][1]
    sequence, first = prefilled(driver := truncated("compact", 6, 140), oracle["p300_ids"], 300)
    assert driver.greedy([sequence], [first], 8)[0] == found[0][1], "speculative equals greedy"


@pytest.mark.parametrize("targets", [(7, 8, 9), (2, 3, 5)])
def test_draft_rings_are_seeded_from_the_kept_rows(
    targets: tuple[int, ...], truncated: MakeDriver, oracle: Mapping[str, Any]
) -> None:
    driver = truncated("compact", 6, 140, targets)
    sequence = driver.add(oracle["p300_ids"])
    with observed(driver.model) as features:
        for count, kept in ((100, 0), (120, 60), (80, 80)):
            driver.step([(sequence, count)], outputs=torch.zeros(0, dtype=torch.int64))
            assert features[-1].shape == (kept, 3 * 128)
            assert [driver.model.counts.written["swa", layer] for layer in (10, 11, 12)] == [kept] * 3


def test_features_before_the_cut_are_exact(truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    """Layers before the cut run on all rows: the features of the kept ones are those of mask mode, bit for bit."""
    seen = []
    for mode in ("compact", "mask"):
        driver = truncated(mode, 6, 140, (2, 3, 5))
        with observed(driver.model) as features:
            prefilled(driver, oracle["p300_ids"], 300)
        seen.append(features[0])
    assert torch.equal(seen[0], seen[1][160:])
