"""Experts of a rank: those it reads from the checkpoint, and spare slots so that every rank holds the same number."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``eplb.redundant_experts`` and, when the engine drafts, the experts of a rank under ``eplb.draft.*``."""
    _redundant(b, "eplb.redundant_experts", "model.config.n_routed_experts")
    if b.integer("speculative.draft_layers"):
        _redundant(b, "eplb.draft.redundant_experts", "model.config.dspark_n_routed_experts")
        local_experts(b, "eplb.draft", "model.config.dspark_n_routed_experts", "eplb.draft.redundant_experts")


def local_experts(b: PlanBuilder, prefix: str, experts: str, redundant: str) -> None:
    """``PREFIX.local_experts``, expert slots of one rank, and ``PREFIX.expert_starts``, the experts it reads."""
    count, ep = b.integer(experts), b.integer("parallel.ep")
    b.formula(
        f"{prefix}.local_experts",
        "(experts + redundant) / ep",
        unit="experts",
        why="expert slots of one rank",
        experts=experts,
        redundant=redundant,
        ep="parallel.ep",
    )
    b.table(
        f"{prefix}.expert_starts",
        [rank * count // ep for rank in range(ep + 1)],
        formula="rank * experts // ep for rank 0 to ep",
        inputs={"experts": experts, "ep": "parallel.ep"},
        unit="experts",
        why="rank r reads the experts from entry r up to entry r + 1; spare slots are filled by the balancer",
    )


def _redundant(b: PlanBuilder, key: str, experts: str) -> None:
    b.formula(
        key,
        "0 if ep == 1 else align(experts + per_rank * ep, ep) - experts",
        unit="experts",
        why="least number of copies that gives every rank its spare slots and all ranks equally many experts",
        ep="parallel.ep",
        experts=experts,
        per_rank="eplb.min_redundant_per_rank",
    )
