"""A plan of the tiny model written by hand, beside the one that the compiler makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.runtime.plan_types import (
    DraftPlan,
    EngramPlan,
    KernelConfig,
    LayerPlan,
    ModelPlan,
    Region,
    RopePlan,
    YocoPlan,
)

WINDOW, HEAD_DIM, INDEX_DIM, NUM_LAYERS, DRAFT_LAYERS = 128, 64, 32, 10, 3
RATIOS = (0, 0, 2, 2, 2, 2, 1, 1, 1, 1)
KV_SOURCES = (None, None, 2, 2, 4, 4, 6, 6, 6, 6)
INDEX_SOURCES = (None, None, 2, 2, 4, 4, 6, 6, 8, 8)

TILES: Mapping[str, Mapping[str, int]] = {
    "linear": {"tokens": 512},
    "hyper_connection": {"tokens": 512},
    "kv_scatter": {"rows": 256},
    "sparse_attention": {"queries": 64},
    "compressor": {"tokens": 256},
    "index_scores": {"queries": 64, "entries": 256},
    "moe_experts": {"tokens": 64},
    "engram_gather": {"tokens": 256},
}
SMALL_TILES: Mapping[str, Mapping[str, int]] = {
    "linear": {"tokens": 7},
    "hyper_connection": {"tokens": 5},
    "kv_scatter": {"rows": 3},
    "sparse_attention": {"queries": 4},
    "compressor": {"tokens": 3},
    "index_scores": {"queries": 6, "entries": 13},
    "moe_experts": {"tokens": 2},
    "engram_gather": {"tokens": 9},
}


def kernel_table(tiles: Mapping[str, Mapping[str, int]]) -> dict[str, KernelConfig]:
    return {name: KernelConfig(name, "reference", {}, tile, 1, 1, 0, "test") for name, tile in tiles.items()}


@dataclass(frozen=True)
class TinyEngine:
    """The parts of a generated folder that the model reads, for the sizes below."""

    plan: ModelPlan
    layout: dict[str, Any]


def tiny_engine(
    oracle: Mapping[str, Any],
    *,
    block: int = 16,
    blocks: int = 256,
    slots: int = 20,
    nextn_room: int = 0,
    nextn: int = 0,
    shift: int = 0,
    yoco: YocoPlan | None = None,
) -> TinyEngine:
    """Plan and layout by hand: ``nextn_room`` lengthens the rings, ``shift`` moves every state region but the first.

    With ``nextn`` the engine drafts: three more layers behind the backbone, and rings with room for as many tokens.
    """
    nextn_room = max(nextn_room, nextn)
    ring, accumulators = WINDOW + nextn_room + 1, 2 + nextn_room
    state: list[dict[str, Any]] = []
    total = NUM_LAYERS + (DRAFT_LAYERS if nextn else 0)
    offset = 0

    def state_region(name: str, kind: str, layer: int, rows: int, row_bytes: int) -> Region:
        nonlocal offset
        size = rows * row_bytes
        padding = -size % 16
        state.append({"name": name, "kind": kind, "layer": layer, "format": "fp32", "offset": offset,
                      "bytes": size + padding, "padding": padding, "rows": rows, "row_bytes": row_bytes,
                      "stored": kind == "swa" and layer < 6})  # fmt: skip
        region = Region(offset, rows, row_bytes, "fp32")
        offset += size + padding + shift
        return region

    swa = [state_region(f"swa.{i}", "swa", i, ring, HEAD_DIM * 4) for i in range(total)]
    ca = {i: state_region(f"ca_state.{i}", "ca_state", i, accumulators, HEAD_DIM * 8) for i in (2, 4)}
    regions: list[dict[str, Any]] = []
    main: dict[int, Region] = {}
    index: dict[int, Region] = {}
    place = 0
    for source in (2, 4, 6):
        rows = block // RATIOS[source]
        main[source] = Region(place, rows, HEAD_DIM * 4, "fp32")
        index[source] = Region(place + rows * HEAD_DIM * 4, rows, INDEX_DIM * 4, "fp32")
        size = rows * (HEAD_DIM + INDEX_DIM) * 4
        regions.append({"name": f"kv.{source}", "layer": source, "ratio": RATIOS[source], "offset": place,
                        "bytes": size, "padding": 0, "main": _entry(main[source]),
                        "index": _entry(index[source])})  # fmt: skip
        place += size
    layout = {
        "block": {"tokens": block, "bytes": place, "count": blocks, "regions": regions},
        "state": {"slot_bytes": offset, "count": slots, "regions": state},
    }
    engrams = {
        layer: EngramPlan(
            rows,
            tuple(int(v) for v in oracle["engram_multipliers"][i]),
            tuple(int(v) for v in oracle["engram_primes"][i]),
            tuple(int(v) for v in oracle["engram_offsets"][i]),
        )
        for i, (layer, rows) in enumerate(((1, 6126), (4, 6332)))
    }
    layers = tuple(
        LayerPlan(
            index=i,
            prefix=f"layers.{i}",
            ratio=RATIOS[i],
            experts=16,
            experts_per_token=3,
            rope="compressed" if RATIOS[i] else "base",
            kv_source=KV_SOURCES[i],
            index_source=INDEX_SOURCES[i],
            candidate_role={6: "source", 8: "consumer"}.get(i, "none"),
            engram=engrams.get(i),
            stored=i < 6,
            swa=swa[i],
            ca_state=ca.get(i),
            main=main.get(KV_SOURCES[i] or -1),
            index_keys=index.get(KV_SOURCES[i] or -1),
        )
        for i in range(NUM_LAYERS)
    )
    drafting = tuple(
        LayerPlan(
            index=i,
            prefix=f"mtp.{i - NUM_LAYERS}",
            ratio=0,
            experts=8,
            experts_per_token=2,
            rope="base",
            kv_source=None,
            index_source=None,
            candidate_role="none",
            engram=None,
            stored=False,
            swa=swa[i],
            ca_state=None,
            main=None,
            index_keys=None,
        )
        for i in range(NUM_LAYERS, total)
    )
    draft = DraftPlan(nextn, 5, 510, (7, 8, 9), drafting) if nextn else None
    rope = {"base": RopePlan(10000, 1, 0, 0), "compressed": RopePlan(160000, 16, 0, 2)}
    return TinyEngine(
        ModelPlan("tiny-v41", "float32_unquantized", CONSTANTS, rope, yoco, layers, draft, None, False), layout
    )


def _entry(region: Region) -> dict[str, Any]:
    return {"format": region.format, "offset": region.offset, "rows": region.rows, "row_bytes": region.row_bytes}


CONSTANTS: Mapping[str, int | float | str] = {
    "vocab_size": 512, "hidden_size": 128, "num_attention_heads": 4, "head_dim": HEAD_DIM, "qk_rope_head_dim": 16,
    "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2, "rms_norm_eps": 1e-20, "moe_intermediate_size": 64,
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5,
    "swiglu_limit": 2.0, "sliding_window": WINDOW, "index_n_heads": 16, "index_head_dim": INDEX_DIM, "index_topk": 24,
    "candidate_topk_blocks": 6, "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "engram_max_ngram_size": 4, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 259, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    "expert_dtype": "fp4", "max_positions": 512, "n_mtp_layers_in_checkpoint": 3, "dspark_num_target_layers": 3,
    "dspark_n_routed_experts": 8, "dspark_markov_rank": 32,
    "weight_tile_rows": 32, "weight_tile_columns": 32,
}  # fmt: skip
