"""``plan`` for people: which engine, the memory of one rank, and the constants that decide how it behaves."""

from __future__ import annotations

from deepinfer_gen.codegen.memory_report import memory_lines, memory_table
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.text import columns, write_value

SECTIONS = (
    ("Limits", ("limits.max_num_seqs", "limits.max_model_len", "model.runtime_max_model_len",
                "limits.max_num_batched_tokens", "limits.max_num_prompts", "limits.prefill_max_sum_seqlen_k")),
    ("Block KV", ("kv.bytes_per_token", "kv.block_size", "kv.block_bytes", "kv.num_blocks", "kv.main_format",
                  "kv.main_row_bytes", "kv.index_format", "kv.index_row_bytes", "kv.row_layout")),
    ("State", ("state.slot_bytes", "state.stored_bytes", "state.dropped_bytes", "state.num_slots",
               "state.swa_ring_tokens", "state.accumulator_ring_rows", "kv.swa_format", "kv.swa_row_bytes")),
    ("Drafting", ("speculative.nextn", "speculative.verify", "speculative.max_backtracking_tokens", "yoco.mode",
                  "yoco.keep_tokens")),
    ("Work of a token", ("active.backbone", "active.backbone_all", "active.encoder", "active.encoder_all",
                         "active.decode", "flops.token")),
    ("Graphs", ("graphs.max_total_q", "graphs.sizes", "graphs.rows")),
    ("Parallel", ("parallel.dp", "parallel.ep", "parallel.cp", "parallel.dispatch", "parallel.engram_placement",
                  "parallel.local_experts", "eplb.redundant_experts")),
)  # fmt: skip
"""Sections of the report and the Plan keys in them; keys that an engine type does not have are left out."""


def plan_lines(plan: Plan, argument: str) -> list[str]:
    """The report; ``argument`` is how the user named the spec."""
    ranks = plan.integer("parallel.ranks")
    lines = [
        f"{plan.name}: {plan['engine.type']} engine for {plan['model']} on {plan['hardware']},"
        f" {ranks:,} rank{'s' if ranks > 1 else ''}, numerics {plan['numerics.policy']}",
        f"spec {plan.spec_file}, spec digest {plan.spec_digest[:12]}, plan digest {plan.plan_digest[:12]}",
        "",
        "Memory of one rank",
        *memory_lines(memory_table(plan)),
    ]
    for title, keys in SECTIONS:
        rows = [[k, write_value(plan[k]), plan.values[k].unit] for k in keys if k in plan]
        if rows:
            lines += ["", title, *columns(rows, "<<<")]
    return [*lines, "", f"deepinfer-gen explain {argument} KEY shows where a number comes from."]
