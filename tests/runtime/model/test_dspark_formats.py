"""Drafting with the released cache formats: draft rings and the block's own rows are both read as stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_and_verify import draft

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

SPEC = Path(__file__).parents[3] / "specs" / "tiny-cpu.yaml"
ORACLE = Path(__file__).parents[2] / "oracle"


@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_short_prompts_draft_as_the_quantised_reference(
    layout: str, tmp_path: Path, make_driver: Any, helpers: Any, checkpoint: Path, oracle: Mapping[str, Any]
) -> None:
    """With up to three tokens no rounding lies near a tie, so a difference of one float32 step flips no code."""
    path = tmp_path / "drafting.yaml"
    text = SPEC.read_text().replace("nextn: 0 ", "nextn: 5 ").replace("float32_unquantized", "float32")
    path.write_text(text.replace("  block_size: 32 ", f"  row_layout: {layout}\n  block_size: 32 "))
    plan = derive(resolve(load_spec(path)))
    engine = helpers.TinyEngine(model_plan(plan), layout_content(plan))
    driver = make_driver(engine, load_model(engine.plan, kernels(plan), checkpoint))
    with np.load(ORACLE / "drafts_f32.npz") as reference:
        for length in (1, 2, 3):
            sequence = driver.add(oracle[f"p{length}_ids"])
            first = int(driver.prefill(sequence)[-1].argmax())
            found = draft(driver, [sequence], [first])
            logits, confidences = found.logits[0].numpy(), found.confidence_logits[0].numpy()
            np.testing.assert_allclose(logits, reference[f"p{length}_draft_logits"], rtol=0, atol=1e-4)
            np.testing.assert_allclose(confidences, reference[f"p{length}_draft_conf"], rtol=0, atol=1e-4)
