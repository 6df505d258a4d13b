"""The memory plan of one rank, and the block pool that fills what is left."""

from __future__ import annotations

from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.resolved import Resolved

_C = "model.config"
_FIXED = ("weights_dense", "weights_experts", "weights_engram", "state", "workspace", "graphs", "margin")


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``memory.*_bytes`` and ``kv.num_blocks``."""
    b.formula(
        "memory.capacity_bytes", "capacity", unit="B", why="device memory of one rank", capacity="hardware.memory_bytes"
    )
    _weights(b, r)
    _state_graphs_margin(b)
    b.formula(
        "memory.fixed_bytes",
        " + ".join(_FIXED),
        unit="B",
        why="everything but the KV blocks",
        **{part: f"memory.{part}_bytes" for part in _FIXED},
    )
    b.formula(
        "memory.max_blocks",
        "max(0, (capacity - fixed) // block_bytes)",
        unit="blocks",
        why="KV blocks that fit beside the fixed parts",
        capacity="memory.capacity_bytes",
        fixed="memory.fixed_bytes",
        block_bytes="kv.block_bytes",
    )
    _num_blocks(b)
    b.formula(
        "memory.block_kv_bytes",
        "num_blocks * block_bytes",
        unit="B",
        why="the block pool, block 0 included",
        num_blocks="kv.num_blocks",
        block_bytes="kv.block_bytes",
    )
    b.formula(
        "memory.total_bytes",
        "fixed + block_kv",
        unit="B",
        why="what one rank takes, margin included",
        fixed="memory.fixed_bytes",
        block_kv="memory.block_kv_bytes",
    )


def _weights(b: PlanBuilder, r: Resolved) -> None:
    drafts = b.integer("speculative.draft_layers") > 0
    draft_dense = {"draft_dense": "weights.draft_dense_bytes"} if drafts else {}
    b.formula(
        "memory.weights_dense_bytes",
        "dense + draft_dense" if drafts else "dense",
        unit="B",
        why="attention, shared experts and heads are whole on every rank",
        dense="weights.dense_bytes",
        **draft_dense,
    )
    draft_experts = {"draft_layers": "speculative.draft_layers", "draft_local": "eplb.draft.local_experts"}
    b.formula(
        "memory.weights_experts_bytes",
        "(layers * local_experts" + (" + draft_layers * draft_local" if drafts else "") + ") * expert",
        unit="B",
        why="a rank holds its share of the routed experts of every layer",
        layers=f"{_C}.num_hidden_layers",
        local_experts="parallel.local_experts",
        expert="weights.expert.bytes",
        **(draft_experts if drafts else {}),
    )
    _engram(b, r)


def _engram(b: PlanBuilder, r: Resolved) -> None:
    rows = {f"rows_{layer}": f"engram.{layer}.rows" for layer in r.model.engram_layer_ids}
    shares = " + ".join(f"ceil_div({name}, ep)" for name in rows) or "0"
    b.formula(
        "memory.engram_rows",
        f"0 if placement == 'host' else {' + '.join(rows) or 0} if placement == 'replicated' else {shares}",
        unit="rows",
        why="Engram rows on the device: an equal share of each table, all of them, or none",
        placement="parallel.engram_placement",
        **rows,
        **({"ep": "parallel.ep"} if rows else {}),
    )
    b.formula(
        "memory.weights_engram_bytes",
        "rows * row_bytes",
        unit="B",
        why="Engram tables on the device",
        rows="memory.engram_rows",
        row_bytes="weights.engram_row_bytes",
    )
    b.formula(
        "memory.host_engram_bytes",
        "tables if placement == 'host' else 0",
        unit="B",
        why="Engram tables in host memory, one copy a host",
        tables="weights.engram_bytes",
        placement="parallel.engram_placement",
    )


def _state_graphs_margin(b: PlanBuilder) -> None:
    b.formula(
        "memory.state_bytes", "slots * slot_bytes", unit="B", why="the slot pool, slot 0 included",
        slots="state.num_slots", slot_bytes="state.slot_bytes",
    )  # fmt: skip
    b.formula(
        "memory.graphs_bytes", "graphs * graph_bytes", unit="B", why="memory the captured graphs keep",
        graphs="graphs.count", graph_bytes="hardware.graph_bytes",
    )  # fmt: skip
    b.formula(
        "memory.margin_bytes", "ceil(capacity * margin)", unit="B", why="left to driver, collectives and fragmentation",
        capacity="memory.capacity_bytes", margin="hardware.memory_margin",
    )  # fmt: skip


def _num_blocks(b: PlanBuilder) -> None:
    if "kv.num_blocks" not in b:
        b.formula(
            "kv.num_blocks",
            "min(max_blocks, max_num_seqs * blocks_per_seq + 1)",
            unit="blocks",
            why="as many blocks as fit, but no more than max_num_seqs longest sequences and block 0 can use",
            max_blocks="memory.max_blocks",
            max_num_seqs="limits.max_num_seqs",
            blocks_per_seq="kv.blocks_per_seq",
        )


def shortage(b: PlanBuilder, r: Resolved) -> InputError | None:
    """What is wrong when the plan does not fit: DI102 the fixed parts or the blocks, DI103 no longest sequence."""
    capacity, fixed = b.integer("memory.capacity_bytes"), b.integer("memory.fixed_bytes")
    parts = ", ".join(f"{part} {b.integer(f'memory.{part}_bytes'):,}" for part in _FIXED)
    remedy = (
        "raise parallel.ep (experts, sharded Engram tables), choose parallel.engram_placement sharded or host, or lower"
        " limits.max_num_seqs (state, logits, graphs) or limits.max_num_batched_tokens (workspace)"
    )
    if fixed > capacity:
        return fault(
            r,
            ("limits.max_num_seqs",),
            "DI102",
            f"the fixed parts of one rank need {fixed:,} bytes, {fixed - capacity:,} more than the {capacity:,} of"
            f" {r.hardware.name}: {parts}",
            remedy,
        )
    blocks, longest = b.integer("kv.num_blocks"), b.integer("kv.blocks_per_seq") + 1
    if blocks < longest:
        return fault(
            r,
            ("kv.num_blocks", "limits.max_model_len"),
            "DI103",
            f"{blocks} KV blocks do not hold one longest sequence, which needs {longest - 1} and block 0:"
            f" {b.integer('memory.max_blocks')} blocks of {b.integer('kv.block_bytes'):,} bytes fit beside {parts}",
            f"set kv.num_blocks to at least {longest}, lower limits.max_model_len, or {remedy}",
        )
    total = b.integer("memory.total_bytes")
    if total > capacity:
        return fault(
            r,
            ("kv.num_blocks",),
            "DI102",
            f"{blocks} KV blocks take {b.integer('memory.block_kv_bytes'):,} bytes and the fixed parts {fixed:,}, which"
            f" is {total - capacity:,} more than the {capacity:,} of {r.hardware.name}: {parts}",
            f"set kv.num_blocks to at most {b.integer('memory.max_blocks')} or auto, or {remedy}",
        )
    return None
