"""What changing one spec field changes: Plan keys, generated files, behaviour. Predicted by hand, one row a field.

``behaviour`` says it in words; ``test_behaviour`` compiles engines and observes it where the mechanism is built.

The base engines are written here, so that a shipped spec may change without changing a prediction. ``normal``: eight
B200, 128 sequences of 65,536 tokens, everything else at its default (nextn 5, blocks of 128: 513 a sequence, 65,665 in
all, 154 slots, 99 graphs). ``short``: the same with 4096 tokens.
``tiny``: the tiny model on the CPU, 16 sequences of 1024 tokens, nothing planned ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any


class Change(Enum):
    """A change whose new value is not a prediction."""

    ANY = "another value"
    ABSENT = "the key is gone"


ANY, ABSENT = Change.ANY, Change.ABSENT

BASES: Mapping[str, Mapping[str, Any]] = {
    "normal": {
        "engine": {"name": "base"},
        "model": "deepseek-v4.1-flash",
        "hardware": "sm100",
        "parallel": {"dp": 8, "ep": 8},
        "limits": {"max_num_seqs": 128, "max_model_len": 65_536},
    },
    "short": {
        "engine": {"name": "base"},
        "model": "deepseek-v4.1-flash",
        "hardware": "sm100",
        "parallel": {"dp": 8, "ep": 8},
        "limits": {"max_num_seqs": 128, "max_model_len": 4096},
    },
    "tiny": {
        "engine": {"name": "base"},
        "model": "tiny-v41",
        "hardware": "cpu",
        "limits": {"max_num_seqs": 16, "max_model_len": 1024},
        "kv": {"block_size": 32},
        "speculative": {"nextn": 0},
        "yoco": {"mode": "off"},
        "schedule": {"zos": "off"},
        "numerics": {"policy": "float32_unquantized"},
    },
}

CONFIG, SCHEDULER, ENGINE = "engine_config.hpp", "scheduler.hpp", "engine.cpp"
LAYOUT, GRAPHS, MODEL, KERNELS = "layout.json", "graphs.json", "model_plan.py", ("kernels.json", "kernels.py")
CODE_FILES = (CONFIG, SCHEDULER, ENGINE, LAYOUT, GRAPHS, MODEL, *KERNELS)
"""Every generated file that is compiled or read at run time; the rest (plan, report, manifest) always changes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One field set to ``value`` on ``base``.

    ``changes`` are the other Plan keys that change, with their new values; ``prefixes`` stand for all keys below them
    (each must match a changed key); ``files`` are the ``CODE_FILES`` that change beyond stamp and digest, all others
    must not. ``run_refuses`` is the key that ``run`` names when it refuses the engine for a mechanism that is not built
    (the field itself, or the one that turns its mechanism on). ``blocks_stored_reads``: KV that the base engine stored
    cannot be read. ``planned``: the value is refused with that word.
    """

    key: str
    value: Any
    changes: Mapping[str, Any] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    behaviour: str = ""
    base: str = "normal"
    run_refuses: str = ""
    blocks_stored_reads: bool = False
    planned: bool = False


def row(key: str, value: Any, changes: Mapping[str, Any] | None = None, files: Iterable[str] = (), **rest: Any) -> Row:
    return Row(key, value, changes or {}, frozenset(files), **rest)


def planned(key: str, value: Any) -> Row:
    return Row(key, value, planned=True, behaviour="refused as planned: nothing reads it yet")


def each(pattern: str, *choices: Iterable[Any]) -> dict[str, Change]:
    """``pattern`` filled with every combination of ``choices``: keys that change to values not predicted."""
    return {pattern.format(*combination): ANY for combination in product(*choices)}


FIXED: Mapping[str, Change] = dict.fromkeys(("memory.fixed_bytes", "memory.max_blocks", "memory.total_bytes"), ANY)
"""Sums over the parts of the memory plan other than the pool: they move with every part."""
POOL: Mapping[str, Change] = dict.fromkeys(("memory.max_blocks", "memory.total_bytes"), ANY)
"""What moves with the size of a block."""
LATER_SOURCES = each("kv.source.{}.{}", (8, 14, 20), ("offset", "main_offset", "index_offset"))
MAIN_SCALES, INDEX_SCALES = (each("kv.source.{}.{}_scales_offset", (8, 14, 20), (rows,)) for rows in ("main", "index"))
SOURCE_BYTES = each("kv.source.{}.bytes", (2, 8, 14, 20))
ROW_KERNELS = ("kernels.kv_scatter.static.", "kernels.sparse_attention.static.")
SLOT_OFFSETS = {
    **each("state.swa.{}.offset", range(1, 43)),
    **each("state.{}.{}.offset", ("ca_state", "ica_state"), (2, 8, 14)),
    **each("state.swa.{}.bytes", range(43)),
    "state.swa_region_bytes": ANY,
}
RING_SCALES = each("state.swa.{}.scales_offset", range(1, 43))
ACCUMULATORS = {**each("state.ca_state.{}.bytes", (2, 8, 14)), "state.ca_state_region_bytes": ANY}

ROWS: tuple[Row, ...] = (
    row("engine.name", "renamed", behaviour="names the folder, the stamp and nothing else"),
    row(
        "engine.type",
        "PROMPT",
        {
            **dict.fromkeys(
                [f"speculative.{k}" for k in ("verify", "prior_survival", "prior_confidence", "min_gain")], ABSENT
            ),
            **dict.fromkeys(("schedule.stop_preempted_request", "graphs.batch_size_interval"), ABSENT),
            **dict.fromkeys(
                [
                    f"schedule.{k}"
                    for k in ("prefill_attempt_interval", "prefill_any_attempt_interval", "prefill_burst")
                ],
                ABSENT,
            ),
            "graphs.sizes": (),
            "graphs.rows": (),
            "graphs.lookup": (),
            "graphs.count": 0,
            "graphs.max_rows": 0,
            "graphs.extra_rows": 0,
            "graphs.max_total_q": 0,
            "memory.graphs_bytes": 0,
            "memory.logits_rows": 16,
            "memory.logits_bytes": ANY,
            "memory.workspace_bytes": ANY,
            "eplb.min_redundant_per_rank": 4,
            "eplb.redundant_experts": 32,
            "eplb.draft.redundant_experts": 32,
            "eplb.draft.local_experts": 20,
            "eplb.window_steps": 100,
            "eplb.rebalance_steps": 1000,
            "parallel.local_experts": 52,
            "memory.weights_experts_bytes": 40_233_369_600,
            "kernels.moe_experts.static.local_experts": 52,
            **FIXED,
        },
        (CONFIG, SCHEDULER, ENGINE, GRAPHS, *KERNELS),
        behaviour="composes the prompt step, has no graphs and no verification",
    ),
    row(
        "model",
        "tiny-v41",
        {
            "parallel.local_experts": 3,
            "parallel.expert_starts": tuple(range(0, 17, 2)),
            "eplb.draft.local_experts": 2,
            "eplb.draft.expert_starts": tuple(range(9)),
        },
        (CONFIG, LAYOUT, MODEL, *KERNELS),
        prefixes=(
            "model.",
            "layers.",
            "kv.",
            "state.",
            "weights.",
            "memory.",
            "engram.",
            "rope.",
            "kernels.",
            "yoco.",
            "active.",
            "flops.",
        ),
        base="short",
        blocks_stored_reads=True,
        behaviour="other layers, rows, regions, offsets; the same sizes of graphs",
    ),
    row(
        "hardware",
        "sm90",
        {
            **each("hardware.{}", ("name", "card", "arch", "compute_units", "memory_bandwidth_bytes_per_s")),
            "hardware.memory_bytes": 141_000_000_000,
            "memory.capacity_bytes": 141_000_000_000,
            "memory.margin_bytes": 7_050_000_000,
            "numerics.policy": "bf16",
            **FIXED,
        },
        (MODEL, *KERNELS),
        prefixes=("numerics.", "memory.", "kernels."),
        behaviour="less memory, bf16 arithmetic by default, the same caches",
    ),
    row(
        "parallel.dp", 16, {"parallel.ranks": 16}, run_refuses="parallel.dp", behaviour="sixteen ranks in two EP groups"
    ),
    row(
        "parallel.ep",
        4,
        {
            "eplb.redundant_experts": 4,
            "parallel.local_experts": 97,
            "parallel.expert_starts": (0, 96, 192, 288, 384),
            "eplb.draft.redundant_experts": 4,
            "eplb.draft.local_experts": 33,
            "eplb.draft.expert_starts": (0, 32, 64, 96, 128),
            "memory.weights_experts_bytes": 74_807_746_560,
            "memory.engram_rows": 192_005_713,
            "memory.weights_engram_bytes": 50_689_508_232,
            "kernels.moe_experts.static.local_experts": 97,
            **FIXED,
        },
        (MODEL, *KERNELS),
        run_refuses="parallel.ep",
        behaviour="97 experts a rank instead of 49",
    ),
    row(
        "parallel.cp",
        2,
        {"parallel.ranks": 16},
        (CONFIG,),
        run_refuses="parallel.cp",
        behaviour="prefill chunks are cut to multiples of 4",
    ),
    row(
        "parallel.dispatch",
        "padded",
        # At least as many rows as tokens up to 128, and then one for every 6 tokens that may be padding.
        {
            "parallel.padded_dispatch": True,
            "graphs.extra_rows": ABSENT,
            "graphs.rows": ANY,
            "graphs.max_rows": 235,  # 128 + 640 / 6, rounded up
        },
        (CONFIG, "graphs.json"),
        behaviour="all ranks of a group run the graph size that they agreed on",
    ),
    row(
        "parallel.engram_placement",
        "host",
        {
            "memory.weights_engram_bytes": 0,
            "memory.host_engram_bytes": 202_758_032_400,
            "memory.engram_rows": ANY,
            "kernels.engram_gather.static.placement": "host",
            **FIXED,
        },
        KERNELS,
        behaviour="Engram rows are gathered from host memory",
    ),
    row(
        "limits.max_num_seqs",
        64,
        {
            "schedule.prefill_burst": 4,
            "state.num_slots": 77,
            "memory.state_bytes": 240_883_104,
            "graphs.max_total_q": 384,
            "graphs.sizes": (1, 2, 4, *range(8, 385, 8)),
            "graphs.rows": (3, 4, 6, *range(10, 67, 8), *[66] * 40),
            "graphs.lookup": ANY,
            "graphs.count": 51,
            "graphs.max_rows": 66,
            "memory.graphs_bytes": 855_638_016,
            "kv.num_blocks": 32_833,
            "memory.block_kv_bytes": 3_740_335_360,
            "memory.logits_rows": 384,
            "memory.logits_bytes": ANY,
            "memory.workspace_bytes": ANY,
            **FIXED,
        },
        (CONFIG, GRAPHS, LAYOUT),
        behaviour="half the sequences: 77 slots, 51 graphs",
    ),
    row(
        "limits.max_model_len",
        32_768,
        {
            "model.runtime_max_model_len": 32_784,
            "limits.prefill_max_sum_seqlen_k": 32_768,
            "kv.blocks_per_seq": 257,
            "kv.num_blocks": 32_897,
            "memory.block_kv_bytes": 3_747_626_240,
            "memory.index_scores_bytes": ANY,
            "memory.workspace_bytes": ANY,
            **FIXED,
        },
        (CONFIG, LAYOUT, MODEL),
        behaviour="longer requests are refused at add",
    ),
    row(
        "limits.max_num_batched_tokens",
        4096,
        {"memory.workspace_tokens": 4096, "memory.workspace_bytes": ANY, **FIXED},
        (CONFIG,),
        behaviour="prompts over 4096 tokens are cut",
    ),
    row(
        "limits.max_num_prompts",
        8,
        {"schedule.prefill_burst": 16},
        (CONFIG,),
        behaviour="8 prompts a step, 16 steps a burst",
    ),
    row(
        "limits.prefill_max_sum_seqlen_k",
        131_072,
        {},
        (CONFIG,),
        behaviour="a step takes prompts up to twice the K length",
    ),
    row(
        "kv.block_size",
        64,
        {
            "kv.block_bytes": 56_960,
            "kv.blocks_per_seq": 1025,
            "kv.num_blocks": 131_201,
            "memory.block_kv_bytes": 7_473_208_960,
            **POOL,
            **LATER_SOURCES,
            **SOURCE_BYTES,
            **each("kv.source.{}.rows", (2, 8, 14, 20)),
            **MAIN_SCALES,
            **INDEX_SCALES,
            "kv.source.2.index_offset": 9216,
            "kv.source.2.index_scales_offset": 9216 + 64,
        },
        (CONFIG, LAYOUT, MODEL),
        blocks_stored_reads=True,
        behaviour="blocks of half the size, twice as many",
    ),
    row(
        "kv.num_blocks",
        4096,
        {"memory.block_kv_bytes": 466_616_320, "memory.total_bytes": ANY},
        (CONFIG, LAYOUT),
        behaviour="a pool of 4095 usable blocks",
    ),
)
