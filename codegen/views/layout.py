"""The memory map: ``layout.json`` and ``graphs.json``, and the regions that the other views share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from deepinfer_gen.codegen.derive.kv import BLOCK_ALIGNMENT
from deepinfer_gen.codegen.derive.state import REGION_ALIGNMENT
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.runtime.plan_types import Region, Scales


@dataclass(frozen=True, slots=True)
class StateRegion:
    """One region of a state slot; ``bytes`` include ``padding``, ``scales`` is None in a format without them."""

    name: str
    kind: str
    layer: int
    format: str
    offset: int
    bytes: int
    padding: int
    rows: int
    row_bytes: int
    stored: bool
    scales: Scales | None


def layer_indices(plan: Plan) -> range:
    """All layers, draft layers last."""
    return range(plan.integer("layers.count"))


def kv_sources(plan: Plan) -> tuple[int, ...]:
    """The layers that own block KV."""
    return tuple(layer for layer in layer_indices(plan) if plan[f"layers.{layer}.kv_source"] == layer)


def state_regions(plan: Plan) -> tuple[StateRegion, ...]:
    """The regions of a state slot in the order of their offsets."""
    accumulators = plan.integers("state.accumulator_layers")
    ring = (str(plan["kv.swa_format"]), plan.integer("state.swa_ring_tokens"), plan.integer("kv.swa_row_bytes"))
    rows = plan.integer("state.accumulator_ring_rows")
    regions = [_state_region(plan, "swa", layer, *ring) for layer in layer_indices(plan)]
    row_bytes = plan.integer("state.accumulator_row_bytes")
    regions += [_state_region(plan, "ca_state", layer, "fp32", rows, row_bytes) for layer in accumulators]
    regions += [_state_region(plan, "ica_state", layer, "fp32", rows, 0) for layer in accumulators]
    return tuple(sorted(regions, key=lambda region: region.offset))


def kv_rows(plan: Plan, source: int, kind: str) -> Region:
    """The ``main`` or ``index`` rows of a KV source in a block."""
    prefix = f"kv.source.{source}"
    return Region(
        offset=plan.integer(f"{prefix}.{kind}_offset"),
        rows=plan.integer(f"{prefix}.rows"),
        row_bytes=plan.integer(f"kv.{kind}_row_bytes"),
        format=str(plan[f"kv.{kind}_format"]),
        scales=_scales(plan, kind, f"{prefix}.{kind}_scales_offset"),
    )


def layout_content(plan: Plan) -> dict[str, Any]:
    """``layout.json`` without schema and stamp."""
    aliases = [
        {"layer": layer, "of": source}
        for layer in layer_indices(plan)
        if (source := plan[f"layers.{layer}.kv_source"]) not in (None, layer)
    ]
    block = {
        "tokens": plan["kv.block_size"],
        "bytes": plan["kv.block_bytes"],
        "alignment": BLOCK_ALIGNMENT,
        "padding": plan["kv.block_padding"],
        "count": plan["kv.num_blocks"],
        "row_layout": plan["kv.row_layout"],
        "regions": [_kv_region(plan, layer) for layer in kv_sources(plan)],
        "aliases": aliases,
    }
    state = {
        "slot_bytes": plan["state.slot_bytes"],
        "count": plan["state.num_slots"],
        "stored_bytes": plan["state.stored_bytes"],
        "dropped_bytes": plan["state.dropped_bytes"],
        "alignment": REGION_ALIGNMENT,
        "regions": [_without_none(asdict(region)) for region in state_regions(plan)],
    }
    return {"block": block, "state": state}


def graphs_content(plan: Plan) -> dict[str, Any]:
    """``graphs.json`` without schema and stamp."""
    pairs = zip(plan.integers("graphs.sizes"), plan.integers("graphs.rows"), strict=True)
    return {
        "max_total_q": plan["graphs.max_total_q"],
        "max_q": plan["speculative.max_q"],
        "graphs": [{"size": size, "rows": rows} for size, rows in pairs],
        "lookup": list(plan.integers("graphs.lookup")),
    }


def _state_region(plan: Plan, kind: str, layer: int, format_: str, rows: int, row_bytes: int) -> StateRegion:
    prefix = f"state.{kind}.{layer}"
    return StateRegion(
        name=f"{kind}.{layer}",
        kind=kind,
        layer=layer,
        format=format_,
        offset=plan.integer(f"{prefix}.offset"),
        bytes=plan.integer(f"{prefix}.bytes"),
        padding=plan.integer(f"{prefix}.padding"),
        rows=rows,
        row_bytes=row_bytes,
        stored=kind == "swa" and plan[f"layers.{layer}.stored"] is True,
        scales=_scales(plan, kind, f"{prefix}.scales_offset"),
    )


def _scales(plan: Plan, kind: str, key: str) -> Scales | None:
    """Data and scales of the ``kind`` rows whose scales begin at the Plan's ``key``; None without scales."""
    if key not in plan:
        return None
    return Scales(
        offset=plan.integer(key),
        bytes=plan.integer(f"kv.{kind}_row_scales_bytes"),
        stride=plan.integer(f"kv.{kind}_scales_stride"),
        data_bytes=plan.integer(f"kv.{kind}_row_data_bytes"),
        data_stride=plan.integer(f"kv.{kind}_data_stride"),
    )


def _kv_region(plan: Plan, layer: int) -> dict[str, Any]:
    prefix = f"kv.source.{layer}"
    return {
        "name": f"kv.{layer}",
        "layer": layer,
        "ratio": plan[f"layers.{layer}.ratio"],
        "offset": plan[f"{prefix}.offset"],
        "bytes": plan[f"{prefix}.bytes"],
        "padding": plan[f"{prefix}.padding"],
        **{kind: _without_none(asdict(kv_rows(plan, layer, kind))) for kind in ("main", "index")},
    }


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    """A region of a format without scales has no such key."""
    return {name: value for name, value in entry.items() if value is not None}
