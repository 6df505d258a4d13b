"""Drafting with the released cache formats: draft rings and the block's own rows are both read as stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_tiny import compiled_tiny
from draft_and_verify import draft

ORACLE = Path(__file__).parents[2] / "oracle"


@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_short_prompts_draft_as_the_quantised_reference(
    layout: str, tmp_path: Path, make_driver: Any, oracle: Mapping[str, Any]
) -> None:
    """With up to three tokens no rounding lies near a tie, so a difference of one float32 step flips no code."""
    engine = compiled_tiny(tmp_path, speculative__nextn=5, numerics__policy="float32", kv__row_layout=layout)
    driver = make_driver(engine, engine.model)
    with np.load(ORACLE / "drafts_f32.npz") as reference:
        for length in (1, 2, 3):
            sequence = driver.add(oracle[f"p{length}_ids"])
            first = int(driver.prefill(sequence)[-1].argmax())
            found = draft(driver, [sequence], [first])
            logits, confidences = found.logits[0].numpy(), found.confidence_logits[0].numpy()
            np.testing.assert_allclose(logits, reference[f"p{length}_draft_logits"], rtol=0, atol=1e-4)
            np.testing.assert_allclose(confidences, reference[f"p{length}_draft_conf"], rtol=0, atol=1e-4)
