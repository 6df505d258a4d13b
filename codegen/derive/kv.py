"""Block KV: bytes of a row, of a token and of a block, and where each source layer's region lies."""

from __future__ import annotations

from deepinfer_gen.codegen.derive import records
from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

REGION_ALIGNMENT = 32
BLOCK_ALIGNMENT = 128


def derive(b: PlanBuilder, r: Resolved) -> None:
    """Sizes of records, ``kv.bytes_per_token``, ``kv.source.L.*``, ``kv.block_*`` and ``kv.blocks_per_seq``."""
    records.sizes(b, r, "main", "model.config.head_dim", "one compressed KV row as the block cache holds it")
    records.sizes(b, r, "index", "model.config.index_head_dim", "one index key, scored to select compressed rows")
    records.sizes(b, r, "swa", "model.config.head_dim", "one window row in a state ring")
    sources = r.model.kv_source_layer_ids
    b.formula(
        "kv.bytes_per_token",
        " + ".join(f"(main + index) / ratio_{layer}" for layer in sources),
        unit="B",
        why="only KV sources store rows, one for each ratio tokens; all other layers read theirs",
        main="kv.main_row_bytes",
        index="kv.index_row_bytes",
        **{f"ratio_{layer}": f"layers.{layer}.ratio" for layer in sources},
    )
    for previous, layer in zip((None, *sources), sources, strict=False):
        _source(b, layer, previous)
        _check_elements(b, r, layer)
    end = {"offset": f"kv.source.{sources[-1]}.offset", "size": f"kv.source.{sources[-1]}.bytes"}
    b.formula(
        "kv.block_bytes",
        f"align(offset + size, {BLOCK_ALIGNMENT})",
        unit="B",
        why="the regions of all KV sources; whole cache lines, so that blocks can be copied as they are",
        **end,
    )
    b.formula(
        "kv.block_padding",
        "block - offset - size",
        unit="B",
        why="unused tail of a block",
        block="kv.block_bytes",
        **end,
    )
    b.formula(
        "kv.blocks_per_seq",
        "ceil_div(length, block_size)",
        unit="blocks",
        why="block table width: a sequence of the greatest length",
        length="model.runtime_max_model_len",
        block_size="kv.block_size",
    )


def _source(b: PlanBuilder, layer: int, previous: int | None) -> None:
    prefix = f"kv.source.{layer}"
    widths = {"rows": f"{prefix}.rows", "main": "kv.main_row_bytes", "index": "kv.index_row_bytes"}
    b.formula(
        f"{prefix}.rows",
        "block_size / ratio",
        unit="rows",
        why="compressed rows of a block's tokens",
        block_size="kv.block_size",
        ratio=f"layers.{layer}.ratio",
    )
    if previous is None:
        b.formula(f"{prefix}.offset", "0", unit="B", why="the first region of a block")
    else:
        b.formula(
            f"{prefix}.offset",
            "previous_offset + previous_bytes",
            unit="B",
            why="regions follow each other in the order of their layers",
            previous_offset=f"kv.source.{previous}.offset",
            previous_bytes=f"kv.source.{previous}.bytes",
        )
    b.formula(
        f"{prefix}.bytes",
        f"align(rows * (main + index), {REGION_ALIGNMENT})",
        unit="B",
        why="main rows and index rows of a source are one region, so that they move together",
        **widths,
    )
    b.formula(
        f"{prefix}.padding",
        "size - rows * (main + index)",
        unit="B",
        why="unused tail of the region",
        size=f"{prefix}.bytes",
        **widths,
    )
    b.formula(f"{prefix}.main_offset", "offset", unit="B", why="main rows come first", offset=f"{prefix}.offset")
    b.formula(
        f"{prefix}.index_offset",
        "offset + rows * main",
        unit="B",
        why="index rows follow the main rows",
        offset=f"{prefix}.offset",
        rows=f"{prefix}.rows",
        main="kv.main_row_bytes",
    )
    for kind in ("main", "index"):
        records.scales_offset(
            b, kind, f"{prefix}.{kind}_scales_offset", start=f"{prefix}.{kind}_offset", rows=f"{prefix}.rows"
        )


def _check_elements(b: PlanBuilder, r: Resolved, layer: int) -> None:
    """Index rows without scales are read as their elements, which begin at a multiple of their size.

    Main rows always do: their region is aligned.
    """
    if b["kv.index_scale_bytes"]:
        return
    element, start = b.integer("kv.index_bits") // 8, b.integer(f"kv.source.{layer}.index_offset")
    if start % element:
        rows, row_bytes = b[f"kv.source.{layer}.rows"], b["kv.main_row_bytes"]
        raise fault(
            r,
            ("kv.index_format", "kv.main_format", "kv.block_size"),
            "DI440",
            f"the index rows of layer {layer} in {b['kv.index_format']} begin behind {rows} main rows of {row_bytes}"
            f" bytes, at byte {start} of a block, which is no multiple of their elements' {element} bytes",
            "raise kv.block_size to a higher power of two, or choose a kv.index_format with smaller elements",
        )
