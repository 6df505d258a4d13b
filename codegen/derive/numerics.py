"""Widths of the values that flow through a step."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``numerics.{activation,operand}_bytes``."""
    b.formula(
        "numerics.activation_bytes",
        "2 if policy == 'bf16' else 2 if policy == 'released' else 4",
        unit="B",
        why="one value of a stream, query or expert row in memory",
        policy="numerics.policy",
    )
    b.formula(
        "numerics.operand_bytes",
        "1 if policy == 'released' else activation",
        unit="B",
        why="one operand of a dense product on chip: the released policy multiplies fp8 by fp8",
        policy="numerics.policy",
        activation="numerics.activation_bytes",
    )
