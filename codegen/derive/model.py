"""The positions the engine must address."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved
from deepinfer_gen.specs.rules import LONGEST_SEQUENCE


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``model.runtime_max_model_len``."""
    b.formula(
        "model.runtime_max_model_len",
        LONGEST_SEQUENCE,
        unit="tokens",
        why="drafts to verify, one step scheduled ahead, and the drafts written after it all need positions",
        max_model_len="limits.max_model_len",
        nextn="speculative.nextn",
    )
