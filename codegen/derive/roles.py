"""What each layer is: where its KV, its selection and its rotary table come from."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.model_rules import latest_source
from deepinfer_gen.specs.resolved import Resolved


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``layers.I.*`` for the backbone, then for the draft layers when the engine drafts; ``layers.count``."""
    drafts = b.integer("speculative.draft_layers")
    b.formula(
        "layers.count",
        "backbone + drafts",
        unit="layers",
        why="draft layers follow the backbone",
        backbone="model.config.num_hidden_layers",
        drafts="speculative.draft_layers",
    )
    for layer in range(r.model.num_hidden_layers + drafts):
        _layer(b, r, layer)


def _layer(b: PlanBuilder, r: Resolved, layer: int) -> None:
    model, prefix = r.model, f"layers.{layer}"
    draft = layer - model.num_hidden_layers
    b.table(
        f"{prefix}.tensors",
        f"layers.{layer}" if draft < 0 else f"mtp.{draft}",
        formula=f"layers.{layer}" if draft < 0 else f"mtp.{layer} - num_hidden_layers",
        inputs={"num_hidden_layers": "model.config.num_hidden_layers"},
        why="what the names of this layer's tensors in the checkpoint begin with",
    )
    for name, backbone, drafting, why in (
        ("experts", "n_routed_experts", "dspark_n_routed_experts", "routed experts of this layer"),
        ("experts_per_token", "num_experts_per_tok", "dspark_num_experts_per_tok", "routed experts of each token"),
    ):
        configured = backbone if draft < 0 else drafting
        b.formula(f"{prefix}.{name}", configured, why=why, **{configured: f"model.config.{configured}"})
    ratios = {"ratios": "model.config.compress_ratios"}
    ratio = model.compress_ratios[layer]
    b.table(
        f"{prefix}.ratio",
        ratio,
        formula=f"compress_ratios[{layer}]",
        inputs=ratios,
        why="tokens that one compressed KV row stands for; 0 sees its window only",
    )
    own = {"ratio": f"{prefix}.ratio"}
    kv_source = latest_source(model.kv_source_layer_ids, layer) if ratio else None
    b.table(
        f"{prefix}.kv_source",
        kv_source,
        formula=f"the last of kv_source_layer_ids up to {layer}; null at ratio 0",
        inputs={"sources": "model.config.kv_source_layer_ids", **own},
        why="the layer whose block KV this one reads; its rows are aliases, not copies",
    )
    b.table(
        f"{prefix}.index_source",
        latest_source(model.index_source_layer_ids, layer) if ratio else None,
        formula=f"the last of index_source_layer_ids up to {layer}; null at ratio 0",
        inputs={"sources": "model.config.index_source_layer_ids", **own},
        why="the layer whose selection of compressed rows this one attends to",
    )
    b.table(
        f"{prefix}.candidate_role",
        _candidate_role(r, layer, kv_source),
        formula=f"source if {layer} = candidate_source_layer_id; consumer if a later index source that reads its KV",
        inputs={
            "candidate_source": "model.config.candidate_source_layer_id",
            "index_sources": "model.config.index_source_layer_ids",
            "kv_source": f"{prefix}.kv_source",
        },
        why="the source publishes its best blocks, and later index sources score inside them only",
    )
    b.table(
        f"{prefix}.engram",
        layer in model.engram_layer_ids,
        formula=f"{layer} is one of engram_layer_ids",
        inputs={"engram_layers": "model.config.engram_layer_ids"},
        why="whether n-gram table rows are added to the streams before this layer",
    )
    b.formula(
        f"{prefix}.rope",
        "'base' if ratio == 0 else 'compressed'",
        why="a layer with compressed KV rotates everything, its window too, by the compressed table",
        ratio=f"{prefix}.ratio",
    )
    b.formula(
        f"{prefix}.stored",
        f"{layer} < first_consumer",
        why="window state before the first consumer layer is stored with a prefix, the rest is rebuilt",
        first_consumer="yoco.first_consumer_layer",
    )


def _candidate_role(r: Resolved, layer: int, kv_source: int | None) -> str:
    source = r.model.candidate_source_layer_id
    if layer == source:
        return "source"
    if layer in r.model.index_source_layer_ids and kv_source == source:
        return "consumer"
    return "none"
