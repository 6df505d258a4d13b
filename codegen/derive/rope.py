"""The two rotary tables."""

from __future__ import annotations

import math

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``rope.base.*`` (plain) and ``rope.compressed.*`` (frequency-only YaRN, or plain when its factor is 1)."""
    b.formula("rope.base.theta", "theta", why="layers that see their window only", theta="model.config.rope_theta")
    b.formula("rope.base.factor", "1", why="the base table is not scaled")
    b.formula("rope.base.low", "0", why="unused without scaling")
    b.formula("rope.base.high", "0", why="unused without scaling")
    theta = "model.config.compress_rope_theta"
    b.formula("rope.compressed.theta", "theta", why="layers with compressed KV reach much farther", theta=theta)
    b.formula(
        "rope.compressed.factor",
        "factor",
        why="by how much the slow frequencies are slowed down; 1 leaves the table plain",
        factor="model.config.rope_scaling.factor",
    )
    scaling, dims = r.model.rope_scaling, r.model.qk_rope_head_dim
    plain = scaling.factor == 1
    for name, rounding, beta, bound in (
        ("low", math.floor, "beta_fast", 0),
        ("high", math.ceil, "beta_slow", dims - 1),
    ):
        turn = _dimension(getattr(scaling, beta), dims, scaling.original_max_position_embeddings, theta=_theta(r))
        clip = max if name == "low" else min
        b.table(
            f"rope.compressed.{name}",
            0 if plain else clip(rounding(turn), bound),
            formula=f"{clip.__name__}({rounding.__name__}(dims * ln(original / (2 pi {beta})) / (2 ln theta)), {bound})"
            + "; 0 when factor is 1",
            inputs={
                beta: f"model.config.rope_scaling.{beta}",
                "original": "model.config.rope_scaling.original_max_position_embeddings",
                "dims": "model.config.qk_rope_head_dim",
                "theta": theta,
                "factor": "rope.compressed.factor",
            },
            why="pairs below low keep their frequency, pairs above high are slowed by the factor, between is a ramp",
        )


def _theta(r: Resolved) -> float:
    return float(r.model.compress_rope_theta)


def _dimension(rotations: float, dims: int, original: int, *, theta: float) -> float:
    """The pair index that makes ``rotations`` turns over the original context."""
    return dims * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(theta))
