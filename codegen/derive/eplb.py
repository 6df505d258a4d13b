"""Redundant experts: enough copies that every rank of the EP group holds the same number."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``eplb.redundant_experts`` and, when the engine drafts, ``eplb.draft.{redundant_experts,local_experts}``."""
    _redundant(b, "eplb.redundant_experts", "model.config.n_routed_experts")
    if b.integer("speculative.draft_layers"):
        _redundant(b, "eplb.draft.redundant_experts", "model.config.dspark_n_routed_experts")
        local_experts(
            b, "eplb.draft.local_experts", "model.config.dspark_n_routed_experts", "eplb.draft.redundant_experts"
        )


def local_experts(b: PlanBuilder, key: str, experts: str, redundant: str) -> None:
    """Write ``key``: expert slots of one rank."""
    b.formula(
        key,
        "(experts + redundant) / ep",
        unit="experts",
        why="expert slots of one rank",
        experts=experts,
        redundant=redundant,
        ep="parallel.ep",
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
