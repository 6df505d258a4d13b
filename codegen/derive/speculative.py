"""Sizes that follow from the number of drafts."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``speculative.max_q``, ``speculative.draft_layers`` and, where it decodes, ``speculative.prior_confidence``."""
    b.formula(
        "speculative.max_q",
        "nextn + 1",
        unit="tokens",
        why="a row verifies its drafts behind the token that is already certain",
        nextn="speculative.nextn",
    )
    b.formula(
        "speculative.draft_layers",
        "layers if nextn > 0 else 0",
        unit="layers",
        why="draft layers are loaded and given state only when the engine drafts",
        layers="model.config.num_nextn_predict_layers",
        nextn="speculative.nextn",
    )
    if "speculative.prior_survival" in b:
        b.formula(
            "speculative.prior_confidence",
            "round(prior_survival * 65535)",
            unit="1/65535",
            why="confidence of a draft whose row has no history, as the device stores confidences: to the nearest even",
            prior_survival="speculative.prior_survival",
        )
