"""The cut between the layers that write the shared KV and the layers that only read it."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``yoco.first_consumer_layer`` and the layer counts on both sides of it."""
    b.formula(
        "yoco.first_consumer_layer",
        "max(kv_sources)",
        why="from the last KV source on, layers read KV that all prompt rows already have: prefill may drop rows here",
        kv_sources="model.config.kv_source_layer_ids",
    )
    b.formula(
        "yoco.consumer_layers",
        "layers - first_consumer",
        unit="layers",
        why="layers whose window state is not stored: it is rebuilt from the kept rows of a prompt",
        layers="model.config.num_hidden_layers",
        first_consumer="yoco.first_consumer_layer",
    )
