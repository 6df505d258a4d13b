"""Bytes and parameters of the checkpoint, from the same table that names its tensors."""

from __future__ import annotations

from deepinfer_gen import checkpoint_table as table
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.formula import operand_names
from deepinfer_gen.specs.resolved import Resolved

_C = "model.config"
_BACKBONE = {"experts": f"{_C}.n_routed_experts"}
_DRAFT = {"experts": f"{_C}.dspark_n_routed_experts"}
_NO_OPERANDS: dict[str, str] = {}
_PARTS = (
    ("globals", table.GLOBALS, _NO_OPERANDS, "embedding, head and final norm"),
    ("layer", table.LAYER, _NO_OPERANDS, "attention, norms, hyper-connections and shared experts of one layer"),
    ("gate", table.GATE, _BACKBONE, "the router of one backbone layer"),
    ("kv_source", table.KV_SOURCE, _NO_OPERANDS, "compressor and index key projection of one KV source"),
    ("gated_source", table.GATED_SOURCE, _NO_OPERANDS, "the pooling gate of a KV source with a ratio over 1"),
    ("index_source", table.INDEX_SOURCE, _NO_OPERANDS, "index queries and head weights of one index source"),
    ("engram", table.ENGRAM, _NO_OPERANDS, "the projection of one Engram layer, its table left out"),
    ("expert", table.EXPERT, _NO_OPERANDS, "one routed expert"),
    ("draft_gate", table.GATE, _DRAFT, "the router of one draft layer"),
    ("draft_first", table.DRAFT_FIRST, _NO_OPERANDS, "projection of the target features, first draft layer only"),
    ("draft_last", table.DRAFT_LAST, _NO_OPERANDS, "Markov head and confidence head, last draft layer only"),
)


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``weights.PART.{bytes,parameters}`` of one instance of each part, then the sums of the whole checkpoint."""
    for index, name in enumerate(("rows", "columns")):
        b.table(
            f"weights.tile_{name}",
            r.model.weight_block_size[index],
            formula=f"weight_block_size[{index}]",
            inputs={"weight_block_size": f"{_C}.weight_block_size"},
            why=f"{name} of a dense weight that share one scale byte",
        )
    b.formula(
        "weights.target_layers",
        "count(target_layer_ids)",
        unit="layers",
        why="layers whose features the first draft layer projects",
        target_layer_ids=f"{_C}.dspark_target_layer_ids",
    )
    for part, parameters, operands, why in _PARTS:
        _part(b, part, parameters, operands, why)
    for unit, measure in (("B", "bytes"), ("", "parameters")):
        _sums(b, measure, unit)
    _embedding(b)
    _engram_tables(b, r)
    _checkpoint(b, r)


def _part(
    b: PlanBuilder, part: str, parameters: tuple[table.Parameter, ...], operands: dict[str, str], why: str
) -> None:
    for measure, unit, expression, reason in (
        ("bytes", "B", table.bytes_formula, "{} in the checkpoint, stored as {}"),
        ("parameters", "", table.elements_formula, "elements of {}, stored as {}"),
    ):
        terms: dict[str, str] = {}
        for parameter in parameters:
            text = expression(parameter)
            name = parameter.name.removesuffix(".weight")
            key = f"weights.{part}.{name}.{measure}"
            b.formula(
                key,
                text,
                unit=unit,
                why=reason.format(parameter.name, parameter.storage),
                **{n: operands.get(n) or _operand(n) for n in operand_names(text)},
            )
            terms[name.replace(".", "_")] = key
        b.formula(f"weights.{part}.{measure}", " + ".join(terms), unit=unit, why=why, **terms)


def _operand(name: str) -> str:
    own = {
        "tile_rows": "weights.tile_rows",
        "target_layers": "weights.target_layers",
        "tile_columns": "weights.tile_columns",
        "mx_group": "formats.mxfp4_g32.group",
    }
    return own.get(name, f"{_C}.{name}")


def _sums(b: PlanBuilder, measure: str, unit: str) -> None:
    b.formula(
        f"weights.dense_{measure}",
        "globals_ + layers * (layer + gate) + count(kv_sources) * kv_source + count(gated_sources) * gated_source"
        " + count(index_sources) * index_source + count(engram_layers) * engram",
        unit=unit,
        why="the backbone without routed experts and Engram tables: every rank holds it whole",
        globals_=f"weights.globals.{measure}",
        layers=f"{_C}.num_hidden_layers",
        layer=f"weights.layer.{measure}",
        gate=f"weights.gate.{measure}",
        kv_sources=f"{_C}.kv_source_layer_ids",
        kv_source=f"weights.kv_source.{measure}",
        gated_sources="state.accumulator_layers",
        gated_source=f"weights.gated_source.{measure}",
        index_sources=f"{_C}.index_source_layer_ids",
        index_source=f"weights.index_source.{measure}",
        engram_layers=f"{_C}.engram_layer_ids",
        engram=f"weights.engram.{measure}",
    )
    b.formula(
        f"weights.draft_dense_{measure}",
        "draft_layers * (layer + draft_gate) + (draft_first + draft_last if draft_layers > 0 else 0)",
        unit=unit,
        why="the draft layers of the checkpoint without routed experts; embedding and head are the backbone's",
        draft_layers=f"{_C}.num_nextn_predict_layers",
        layer=f"weights.layer.{measure}",
        draft_gate=f"weights.draft_gate.{measure}",
        draft_first=f"weights.draft_first.{measure}",
        draft_last=f"weights.draft_last.{measure}",
    )


def _embedding(b: PlanBuilder) -> None:
    b.formula(
        "weights.embed_row_bytes",
        "embed / vocab",
        unit="B",
        why="what a step reads of the embedding for each token",
        embed="weights.globals.embed.bytes",
        vocab=f"{_C}.vocab_size",
    )


def _engram_tables(b: PlanBuilder, r: Resolved) -> None:
    b.formula(
        "weights.engram_row_bytes",
        "head_dim + head_dim / mx_group",
        unit="B",
        why="one table row: e4m3 values and their scale bytes",
        head_dim=f"{_C}.engram_head_dim",
        mx_group="formats.mxfp8_g32.group",
    )
    rows = {f"rows_{layer}": f"engram.{layer}.rows" for layer in r.model.engram_layer_ids}
    b.formula("weights.engram_rows", " + ".join(rows) or "0", unit="rows", why="rows of all Engram tables", **rows)
    b.formula(
        "weights.engram_bytes",
        "rows * row_bytes",
        unit="B",
        why="all Engram tables, one copy",
        rows="weights.engram_rows",
        row_bytes="weights.engram_row_bytes",
    )


def _checkpoint(b: PlanBuilder, r: Resolved) -> None:
    b.formula(
        "weights.checkpoint_bytes",
        "dense + engram + layers * experts * expert + draft_dense + draft_layers * draft_experts * expert",
        unit="B",
        why="the text checkpoint, draft layers included, vision left out",
        dense="weights.dense_bytes",
        engram="weights.engram_bytes",
        layers=f"{_C}.num_hidden_layers",
        experts=f"{_C}.n_routed_experts",
        expert="weights.expert.bytes",
        draft_dense="weights.draft_dense_bytes",
        draft_layers=f"{_C}.num_nextn_predict_layers",
        draft_experts=f"{_C}.dspark_n_routed_experts",
    )
