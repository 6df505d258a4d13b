"""Sizes that follow from the number of drafts."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``speculative.max_q`` and ``speculative.draft_layers``."""
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
