"""Floating point operations by what causes them: a token of a layer, an attended row, a scored entry, a row of logits.

A multiply and an add are two. Products between tensors count; norms, softmax, activation functions, rotations, gated
pooling and the Sinkhorn passes, which are linear in a token's width, do not. A step's sum is these constants times the
step's counts.
"""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

_C = "model.config"
_STREAMS = {"n": f"{_C}.hc_mult", "hidden": f"{_C}.hidden_size"}


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``flops.*``; those of drafts where the engine drafts."""
    b.formula(
        "flops.dense",
        "2 * (attention + shared_expert + gate)",
        unit="FLOP",
        why="dense products of a token in one backbone layer",
        **{part: f"active.{part}" for part in ("attention", "shared_expert", "gate")},
    )
    _double(b, "experts", "active.experts", "routed experts of a token in one backbone layer")
    b.formula(
        "flops.hyper_connections",
        "2 * coefficients + 2 * 2 * (n * n + 2 * n) * hidden",
        unit="FLOP",
        why="both sites of a layer: coefficients, collapse of n streams, mixing of n x n and the sublayer's output",
        coefficients="active.hyper_connections",
        **_STREAMS,
    )
    _double(b, "kv_source", "active.kv_source", "compressor and index key of a token in a KV source")
    _double(b, "gated_source", "active.gated_source", "gate scores of a token in a source with a ratio over 1")
    _double(b, "index_source", "active.index_source", "index queries and head weights of a token in an index source")
    b.formula(
        "flops.engram",
        "2 * projection + 2 * 2 * n * hidden",
        unit="FLOP",
        why="an Engram layer's projection, its dot products with n streams and the gated value added to each",
        projection="active.engram",
        **_STREAMS,
    )
    b.formula(
        "flops.attended_row",
        "2 * 2 * heads * head_dim",
        unit="FLOP",
        why="one query against one row, which is key and value of all heads",
        heads=f"{_C}.num_attention_heads",
        head_dim=f"{_C}.head_dim",
    )
    b.formula(
        "flops.scored_entry",
        "2 * heads * head_dim + 2 * heads",
        unit="FLOP",
        why="one index query against one index key: a dot product a head, then their weighted sum",
        heads=f"{_C}.index_n_heads",
        head_dim=f"{_C}.index_head_dim",
    )
    b.formula(
        "flops.logits_row",
        "2 * head + 2 * n * hidden",
        unit="FLOP",
        why="the last collapse and the LM head",
        head="active.head",
        **_STREAMS,
    )
    _token(b)
    if b.integer("speculative.draft_layers"):
        _draft(b)


def _token(b: PlanBuilder) -> None:
    """The part of a decoded token that no context lengthens."""
    counts = {"kv_source": f"{_C}.kv_source_layer_ids", "gated_source": "state.accumulator_layers",
              "index_source": f"{_C}.index_source_layer_ids", "engram": f"{_C}.engram_layer_ids"}  # fmt: skip
    each = ("dense", "experts", "hyper_connections")
    b.formula(
        "flops.token",
        " + ".join(
            [f"layers * ({' + '.join(each)})", *(f"count({part}_layers) * {part}" for part in counts), "logits"]
        ),
        unit="FLOP",
        why="a decoded token without attended rows and scored entries",
        layers=f"{_C}.num_hidden_layers",
        logits="flops.logits_row",
        **{f"{part}_layers": key for part, key in counts.items()},
        **{part: f"flops.{part}" for part in (*each, *counts)},
    )


def _draft(b: PlanBuilder) -> None:
    b.formula(
        "flops.draft_target_row",
        "2 * (features + layers * keys)",
        unit="FLOP",
        why="a target row made into the window rows of all draft layers",
        features="active.draft_features",
        layers="speculative.draft_layers",
        keys="active.draft_keys",
    )
    b.formula(
        "flops.draft_position",
        "layers * (2 * layer + hyper_connections)",
        unit="FLOP",
        why="one position of a draft block through all draft layers, without attended rows",
        layers="speculative.draft_layers",
        layer="active.draft_layer",
        hyper_connections="flops.hyper_connections",
    )
    b.formula(
        "flops.draft_logits_row",
        "logits + 2 * heads",
        unit="FLOP",
        why="one draft: LM head, Markov head and confidence head",
        logits="flops.logits_row",
        heads="active.draft_heads",
    )


def _double(b: PlanBuilder, name: str, parameters: str, why: str) -> None:
    b.formula(f"flops.{name}", "2 * parameters", unit="FLOP", why=why, parameters=parameters)
