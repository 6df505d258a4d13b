"""The kernels of the engine: compile-time arguments and tile shapes for each backend, as data.

Tiles are expressions over the kernel's static arguments, ``activation`` and ``operand`` (bytes of a value).
``shared`` is the on-chip memory of one kernel block over its tiles, ``stages`` and the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_C = "model.config"


@dataclass(frozen=True, slots=True)
class Shape:
    """Tile shape and launch of one kernel on one backend."""

    tile: Mapping[str, str]
    threads: int
    stages: int
    shared: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel; ``static`` maps compile-time arguments to Plan keys, ``cpu`` holds the reference block sizes."""

    name: str
    why: str
    static: Mapping[str, str]
    cpu: Mapping[str, int]
    cuda: Shape
    ascend: Shape


IMPLEMENTATIONS = {"cpu": "reference", "cuda": "tilelang_cuda", "ascend": "tilelang_ascend"}

_GEMM = {"tokens": "64", "outputs": "128", "depth": "128 // operand"}
_ATTENTION = {
    "queries": "1", "heads": "min(num_attention_heads, 128 // activation)", "entries": "128 // activation",
}  # fmt: skip
_ATTENTION_SHARED = "(queries * heads + stages * entries) * head_dim * activation"
_ROWS = {
    "swa_format": "kv.swa_format", "main_format": "kv.main_format", "row_layout": "kv.row_layout",
    "swa_row_bytes": "kv.swa_row_bytes", "main_row_bytes": "kv.main_row_bytes",
}  # fmt: skip
_INDEX_ROWS = {"index_format": "kv.index_format", "index_row_bytes": "kv.index_row_bytes"}

KERNELS = (
    Kernel(
        "linear",
        "dense product with weights as stored; one scale tile is read for every depth step",
        {"policy": "numerics.policy", "tile_rows": "weights.tile_rows", "tile_columns": "weights.tile_columns"},
        {"tokens": 1024},
        Shape(_GEMM, 256, 4, "stages * (tokens + outputs) * depth * operand"),
        Shape(_GEMM, 1, 3, "stages * (tokens + outputs) * depth * operand"),
    ),
    Kernel(
        "hyper_connection",
        "streams are read once for collapse, mixing and expansion",
        {"hc_mult": f"{_C}.hc_mult", "hidden_size": f"{_C}.hidden_size", "sinkhorn_iters": f"{_C}.hc_sinkhorn_iters"},
        {"tokens": 1024},
        Shape({"tokens": "4", "columns": "min(hidden_size, 1024)"}, 256, 2, "stages * tokens * hc_mult * columns * 4"),
        Shape({"tokens": "4", "columns": "min(hidden_size, 512)"}, 1, 2, "stages * tokens * hc_mult * columns * 4"),
    ),
    Kernel(
        "kv_scatter",
        "rows are rotated, quantised and written to ring and block in one pass",
        {"head_dim": f"{_C}.head_dim", "rope_dim": f"{_C}.qk_rope_head_dim", "ring": "state.swa_ring_tokens"}
        | _ROWS
        | _INDEX_ROWS,
        {"rows": 4096},
        Shape({"rows": "16"}, 128, 1, "rows * head_dim * 4"),
        Shape({"rows": "16"}, 1, 1, "rows * head_dim * 4"),
    ),
    Kernel(
        "sparse_attention",
        "all heads share one KV row, so a row is decoded once for a tile of heads",
        {
            "num_attention_heads": f"{_C}.num_attention_heads",
            "head_dim": f"{_C}.head_dim",
            "window": f"{_C}.sliding_window",
            "ring": "state.swa_ring_tokens",
            "topk": f"{_C}.index_topk",
        }
        | _ROWS,
        {"queries": 256},
        Shape(_ATTENTION, 256, 2, _ATTENTION_SHARED),
        Shape(_ATTENTION | {"heads": "min(num_attention_heads, 64 // activation)", "entries": "64 // activation"}, 1, 2,
              _ATTENTION_SHARED),
    ),
    Kernel(
        "compressor",
        "groups are pooled per channel from the accumulator ring, then normalised",
        {
            "head_dim": f"{_C}.head_dim",
            "ring_rows": "state.accumulator_ring_rows",
            "row_bytes": "state.accumulator_row_bytes",
        },
        {"tokens": 1024},
        Shape({"tokens": "16", "channels": "head_dim"}, 128, 2, "stages * tokens * 2 * channels * 4"),
        Shape({"tokens": "8", "channels": "head_dim"}, 1, 2, "stages * tokens * 2 * channels * 4"),
    ),
    Kernel(
        "index_scores",
        "index keys pass once for a tile of queries, all index heads together",
        {
            "index_n_heads": f"{_C}.index_n_heads",
            "index_head_dim": f"{_C}.index_head_dim",
            "topk": f"{_C}.index_topk",
            "candidate_blocks": f"{_C}.candidate_topk_blocks",
            "candidate_block_size": f"{_C}.candidate_block_size",
            "row_layout": "kv.row_layout",
        }
        | _INDEX_ROWS,
        {"queries": 256, "entries": 4096},
        Shape(
            {"queries": "4", "entries": "128"}, 256, 2,
            "(queries * index_n_heads + stages * entries) * index_head_dim * activation",
        ),
        Shape(
            {"queries": "2", "entries": "64"}, 1, 2,
            "(queries * index_n_heads + stages * entries) * index_head_dim * activation",
        ),
    ),
    Kernel(
        "moe_experts",
        "rows are grouped by expert; gate and up tiles are multiplied together",
        {
            "policy": "numerics.policy",
            "local_experts": "parallel.local_experts",
            "topk": f"{_C}.num_experts_per_tok",
            "hidden_size": f"{_C}.hidden_size",
            "inner_size": f"{_C}.moe_intermediate_size",
            "scale_group": "formats.mxfp4_g32.group",
        },
        {"tokens": 1024},
        Shape(_GEMM, 256, 4, "stages * (tokens + 2 * outputs) * depth * operand"),
        Shape(_GEMM, 1, 3, "stages * (tokens + 2 * outputs) * depth * operand"),
    ),
    Kernel(
        "engram_gather",
        "all rows of a token are hashed and fetched together",
        {
            "tables": "engram.tables_per_layer",
            "row_bytes": "weights.engram_row_bytes",
            "max_ngram": f"{_C}.engram_max_ngram_size",
            "placement": "parallel.engram_placement",
        },
        {"tokens": 1024},
        Shape({"tokens": "8"}, 256, 1, "tokens * tables * row_bytes"),
        Shape({"tokens": "8"}, 1, 1, "tokens * tables * row_bytes"),
    ),
    Kernel(
        "sampler",
        "a row's vocabulary streams through once for the filters and once for the draw",
        {"vocab_size": f"{_C}.vocab_size", "max_q": "speculative.max_q"},
        {"rows": 64},
        Shape({"rows": "1", "columns": "min(vocab_size, 4096)"}, 512, 2, "stages * rows * columns * 4"),
        Shape({"rows": "1", "columns": "min(vocab_size, 4096)"}, 1, 2, "stages * rows * columns * 4"),
    ),
)  # fmt: skip
