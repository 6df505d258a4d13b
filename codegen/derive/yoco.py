"""The cut between the layers that write the shared KV and the layers that only read it."""

from __future__ import annotations

from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``yoco.first_consumer_layer`` and the layer counts on both sides of it; refuses broken promises."""
    _check_recomputation(r)
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


def _check_recomputation(r: Resolved) -> None:
    """A preempted request that is recomputed prefills its output too, so another part of it passes the cut.

    Preemption depends on what else runs, and with it then the result.
    """
    keys = ("schedule.stop_preempted_request", "determinism.batch_invariant", "yoco.mode")
    stops, invariant, mode = (r.settings[key].value if key in r.settings else None for key in keys)
    if stops is False and invariant is True and mode not in (None, "off"):
        raise fault(
            r,
            keys,
            "DI441",
            f"determinism.batch_invariant cannot hold where yoco.mode is {mode} and schedule.stop_preempted_request is"
            " false: a request that the batch makes give way keeps other rows when it is recomputed",
            "leave schedule.stop_preempted_request true, or write yoco.mode: off",
        )
