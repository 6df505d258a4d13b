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
    low = max(math.floor(_pair(r, scaling.beta_fast)), 0)
    high = min(math.ceil(_pair(r, scaling.beta_slow)), dims - 1)
    if scaling.factor == 1:
        low = high = 0
    rule = "(dims * ln(original / (2 pi beta)) / (2 ln theta))"
    inputs = {
        "dims": "model.config.qk_rope_head_dim",
        "original": "model.config.rope_scaling.original_max_position_embeddings",
        "theta": "rope.compressed.theta",
        "factor": "rope.compressed.factor",
    }
    b.table(
        "rope.compressed.low",
        low,
        formula=f"max(floor{rule}, 0); 0 when factor is 1",
        inputs={"beta": "model.config.rope_scaling.beta_fast", **inputs},
        why="pairs below turn often inside the original context and keep their frequency",
    )
    b.table(
        "rope.compressed.high",
        high,
        formula=f"min(ceil{rule}, dims - 1); 0 when factor is 1",
        inputs={"beta": "model.config.rope_scaling.beta_slow", **inputs},
        why="pairs above turn less than once there and are slowed by the factor; between low and high is a ramp",
    )


def _pair(r: Resolved, rotations: int) -> float:
    """The index of the pair that makes ``rotations`` turns over the original context."""
    original = r.model.rope_scaling.original_max_position_embeddings
    turns = math.log(original / (2 * math.pi * rotations))
    return r.model.qk_rope_head_dim * turns / (2 * math.log(r.model.compress_rope_theta))
