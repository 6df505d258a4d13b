"""Active parameters: how many parameters each token is multiplied with.

Only matrices count: a norm's weight, a bias or a table row that is looked up is no product.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

_C = "model.config"
_ATTENTION = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``active.PART`` of one layer that has the part, then sums over the backbone, its encoder and a decoded token."""
    _layer(b)
    _extras(b)
    _sums(b, r)
    if b.integer("speculative.draft_layers"):
        _draft(b)


def _layer(b: PlanBuilder) -> None:
    _sum(b, "attention", "projections of one layer's attention", *(f"layer.attn.{name}" for name in _ATTENTION))
    _sum(b, "shared_expert", "the shared expert of one layer", *(f"layer.ffn.shared_experts.w{i}" for i in (1, 2, 3)))
    _sum(b, "gate", "the router of one backbone layer", "gate.ffn.gate")
    b.formula(
        "active.experts",
        "per_token * expert",
        why="the routed experts of a token in one backbone layer",
        per_token=f"{_C}.num_experts_per_tok",
        expert="weights.expert.parameters",
    )
    b.formula(
        "active.layer",
        "attention + shared_expert + gate + experts",
        why="what every backbone layer multiplies a token with",
        **{part: f"active.{part}" for part in ("attention", "shared_expert", "gate", "experts")},
    )


def _extras(b: PlanBuilder) -> None:
    """What some layers have, and the hyper-connections, which only move between streams."""
    _sum(b, "hyper_connections", "coefficients of both sites of one layer", "layer.hc_attn_fn", "layer.hc_ffn_fn")
    _sum(b, "kv_source", "the compressor of a KV source and its index key projection",
         "kv_source.attn.compressor.wkv", "kv_source.attn.indexer.wk")  # fmt: skip
    _sum(b, "gated_source", "the pooling gate of a source with a ratio over 1", "gated_source.attn.compressor.wgate")
    _sum(b, "index_source", "index queries and head weights of an index source",
         "index_source.attn.indexer.wq_b", "index_source.attn.indexer.weights_proj")  # fmt: skip
    _sum(b, "engram", "keys and value of one Engram layer", "engram.engram.wkv")
    _sum(b, "head", "the LM head", "globals.head")


def _sums(b: PlanBuilder, r: Resolved) -> None:
    counts = {"kv_source": f"{_C}.kv_source_layer_ids", "gated_source": "state.accumulator_layers",
              "index_source": f"{_C}.index_source_layer_ids", "engram": f"{_C}.engram_layer_ids"}  # fmt: skip
    for name, layers, why in (
        ("backbone", f"{_C}.num_hidden_layers", "attention, experts and gates of all backbone layers"),
        ("encoder", "yoco.first_consumer_layer", "the same of the layers before the cut, which see every prompt row"),
    ):
        b.formula(f"active.{name}", "layers * layer", why=why, layers=layers, layer="active.layer")
        if name == "encoder":
            counts = {part: _before_the_cut(b, part, key) for part, key in counts.items()}
        b.formula(
            f"active.{name}_all",
            " + ".join(["base + layers * hyper_connections", *(f"count({p}_layers) * {p}" for p in counts)]),
            why="with hyper-connections, compressors, indexers and Engram projections",
            base=f"active.{name}",
            layers=layers,
            hyper_connections="active.hyper_connections",
            **{f"{part}_layers": key for part, key in counts.items()},
            **{part: f"active.{part}" for part in counts},
        )
    b.formula(
        "active.decode",
        "backbone + head",
        why="a decoded token: the whole backbone and the LM head",
        backbone="active.backbone_all",
        head="active.head",
    )


def _before_the_cut(b: PlanBuilder, part: str, listed: str) -> str:
    """The key of the list of layers of ``listed`` before the first consumer layer."""
    key, cut = f"active.encoder_{part}_layers", b.integer("yoco.first_consumer_layer")
    layers = b[listed]
    assert isinstance(layers, Sequence)
    b.table(
        key,
        tuple(layer for layer in layers if isinstance(layer, int) and layer < cut),
        formula="those layers that come before first_consumer",
        inputs={"layers": listed, "first_consumer": "yoco.first_consumer_layer"},
        why="which of them belong to the encoder",
    )
    return key


def _draft(b: PlanBuilder) -> None:
    _sum(b, "draft_gate", "the router of one draft layer", "draft_gate.ffn.gate")
    b.formula(
        "active.draft_layer",
        "attention + shared_expert + gate + per_token * expert",
        why="what a draft layer multiplies each position of its block with",
        attention="active.attention",
        shared_expert="active.shared_expert",
        gate="active.draft_gate",
        per_token=f"{_C}.dspark_num_experts_per_tok",
        expert="weights.expert.parameters",
    )
    _sum(b, "draft_features", "the projection of a target row's features", "draft_first.main_proj")
    _sum(b, "draft_keys", "the projection of a target row to one draft layer's window row", "layer.attn.wkv")
    _sum(b, "draft_heads", "Markov head and confidence head of one draft", "draft_last.markov_head.head",
         "draft_last.confidence_head.proj")  # fmt: skip


def _sum(b: PlanBuilder, part: str, why: str, *parameters: str) -> None:
    terms = {name.rpartition(".")[2]: f"weights.{name}.parameters" for name in parameters}
    b.formula(f"active.{part}", " + ".join(terms), why=why, **terms)
