"""State slots: the window rings and compressor accumulators of one sequence.

Order: stored window rings | consumer window rings | draft window rings | accumulators, so that storing a sequence is
one copy of the first ``state.stored_bytes`` bytes.
"""

from __future__ import annotations

from deepinfer_gen.codegen.derive import records
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

REGION_ALIGNMENT = 16


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``state.*``: ring lengths, region sizes, sums, ``state.{swa,ca_state,ica_state}.L.*`` and the slot count."""
    _rings(b, r)
    _sums(b)
    _regions(b, r)
    b.formula(
        "state.num_slots",
        "max(floor(max_num_seqs * slots_ratio), max_num_seqs + 1) + 1",
        unit="slots",
        why="spare slots let prompts start while others finish; slot 0 is the dummy of padding rows",
        max_num_seqs="limits.max_num_seqs",
        slots_ratio="state.slots_ratio",
    )


def _rings(b: PlanBuilder, r: Resolved) -> None:
    backtracking = "speculative.max_backtracking_tokens"
    b.formula(
        "state.swa_ring_tokens",
        "window + backtracking",
        unit="tokens",
        why="rejected drafts must not overwrite a row that the window still needs",
        window="model.config.sliding_window",
        backtracking=backtracking,
    )
    b.formula(
        "state.accumulator_ring_rows",
        "max(ratios) + backtracking - 1",
        unit="rows",
        why="an open group of tokens and every draft that may be rejected",
        ratios="model.config.compress_ratios",
        backtracking=backtracking,
    )
    b.formula(
        "state.accumulator_row_bytes",
        "2 * head_dim * 4",
        unit="B",
        why="KV and score accumulators in float32",
        head_dim="model.config.head_dim",
    )
    for name, rows, row_bytes, why in (
        ("swa", "state.swa_ring_tokens", "kv.swa_row_bytes", "one layer's window ring"),
        ("ca_state", "state.accumulator_ring_rows", "state.accumulator_row_bytes", "one source's accumulator ring"),
    ):
        b.formula(
            f"state.{name}_region_bytes", f"align(rows * row_bytes, {REGION_ALIGNMENT})", unit="B", why=why,
            rows=rows, row_bytes=row_bytes,
        )  # fmt: skip
        b.formula(
            f"state.{name}_region_padding", "size - rows * row_bytes", unit="B", why="unused tail of such a region",
            size=f"state.{name}_region_bytes", rows=rows, row_bytes=row_bytes,
        )  # fmt: skip
    b.table(
        "state.accumulator_layers",
        accumulator_layers(r),
        formula="KV sources with a ratio over 1",
        inputs={"sources": "model.config.kv_source_layer_ids", "ratios": "model.config.compress_ratios"},
        why="a source that pools several tokens keeps the open group between steps",
    )


def _sums(b: PlanBuilder) -> None:
    swa = "state.swa_region_bytes"
    b.formula(
        "state.stored_bytes",
        "stored_layers * swa",
        unit="B",
        why="window rings of the layers before the first consumer: the only state kept with a stored prefix",
        stored_layers="yoco.first_consumer_layer",
        swa=swa,
    )
    b.formula(
        "state.dropped_bytes",
        "(consumer_layers + draft_layers) * swa + count(accumulator_layers) * ca_state",
        unit="B",
        why="consumer rings, draft rings and accumulators: handed over between engines, never stored",
        consumer_layers="yoco.consumer_layers",
        draft_layers="speculative.draft_layers",
        swa=swa,
        accumulator_layers="state.accumulator_layers",
        ca_state="state.ca_state_region_bytes",
    )
    b.formula(
        "state.slot_bytes",
        "stored + dropped",
        unit="B",
        why="everything one sequence needs beside its KV blocks",
        stored="state.stored_bytes",
        dropped="state.dropped_bytes",
    )


def _regions(b: PlanBuilder, r: Resolved) -> None:
    layers, accumulators = b.integer("layers.count"), accumulator_layers(r)
    order = [("swa", layer) for layer in range(layers)]  # stored, consumer and draft rings are in layer order already
    order += [("ca_state", layer) for layer in accumulators]
    order += [("ica_state", layer) for layer in accumulators]
    previous: str | None = None
    for kind, layer in order:
        prefix = f"state.{kind}.{layer}"
        _offset(b, prefix, previous)
        if kind == "ica_state":
            b.formula(
                f"{prefix}.bytes", "0", unit="B", why="index keys are projected from the main latent and need no state"
            )
            b.formula(f"{prefix}.padding", "0", unit="B", why="an empty region")
        else:
            for name in ("bytes", "padding"):
                b.formula(
                    f"{prefix}.{name}", "size", unit="B", why="the same for every region of its kind",
                    size=f"state.{kind}_region_{name}",
                )  # fmt: skip
        if kind == "swa":
            records.scales_offset(
                b, "swa", f"{prefix}.scales_offset", start=f"{prefix}.offset", rows="state.swa_ring_tokens"
            )
        previous = prefix


def _offset(b: PlanBuilder, prefix: str, previous: str | None) -> None:
    if previous is None:
        b.formula(f"{prefix}.offset", "0", unit="B", why="the first region of a slot")
        return
    b.formula(
        f"{prefix}.offset",
        "previous_offset + previous_bytes",
        unit="B",
        why="stored rings, consumer rings, draft rings, accumulators, without gaps",
        previous_offset=f"{previous}.offset",
        previous_bytes=f"{previous}.bytes",
    )


def accumulator_layers(r: Resolved) -> tuple[int, ...]:
    """KV sources that pool several tokens into a row."""
    return tuple(layer for layer in r.model.kv_source_layer_ids if r.model.compress_ratios[layer] > 1)
