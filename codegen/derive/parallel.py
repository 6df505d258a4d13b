"""How many ranks there are and what each holds."""

from __future__ import annotations

from deepinfer_gen.codegen.derive.eplb import local_experts
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``parallel.{ranks,padded_dispatch,local_experts,expert_starts}``."""
    why = "one process each"
    if "parallel.cp" in b:
        b.formula("parallel.ranks", "dp * cp", unit="ranks", why=why, dp="parallel.dp", cp="parallel.cp")
    else:
        b.formula("parallel.ranks", "dp", unit="ranks", why=f"{why}; only prefill splits a context", dp="parallel.dp")
    b.formula(
        "parallel.padded_dispatch",
        "dispatch == 'padded'",
        why="whether the ranks of a group agree on one graph size a step",
        dispatch="parallel.dispatch",
    )
    local_experts(b, "parallel", "model.config.n_routed_experts", "eplb.redundant_experts")
