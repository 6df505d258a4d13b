"""The memory plan of one rank, worked out by hand: released model, eight ranks, one B200 each."""

from __future__ import annotations

import pytest

from deepinfer_gen.codegen.derive import derive

TOKEN = (
    2 * 4 * 5120 * 2  # streams before and after a sublayer, bf16
    + 6 * (2 * 2304 + 5120) * 2  # six experts: gate, up, output
    + 4 * 5120  # float32 sum
    + 2 * 6 * 5120 * 2  # rows sent and received
)
EXPERT = 3 * 5120 * 2304 // 2 + 3 * 5120 * 2304 // 32
MEMORY = {
    "weights_experts": (40 * 49 + 3 * 17) * EXPERT,
    "weights_engram": (48_000_771 + 48_002_086) * (256 + 8),
    "block_kv": (128 * 513 + 1) * 113_920,
    "state": 154 * 3_128_352,
    "graphs": 99 * 16 * 2**20,
    "margin": 9_000_000_000,
    "index_scores": 4 * 4 * 148 * 65_552,  # four queries on each of 148 SMs against every row
    "logits": 768 * 129_280 * 4 * 2,
    "decoded_operands": 0,
    "workspace": 8192 * TOKEN + 4 * 4 * 148 * 65_552 + 768 * 129_280 * 8,
    "capacity": 180_000_000_000,
}


@pytest.mark.parametrize("part", MEMORY)
def test_part(make, part):
    assert derive(make())[f"memory.{part}_bytes"] == MEMORY[part]


def test_trap_45_token_workspace_follows_the_larger_step(make):
    prefill = derive(make({"limits.max_num_batched_tokens": 8192}))
    decode = derive(make({"limits.max_num_batched_tokens": 16}))
    assert (prefill["memory.workspace_tokens"], decode["memory.workspace_tokens"]) == (8192, 768)


def test_attention_bounds_a_token_where_experts_are_small(make, tiny):
    plan = derive(make({"numerics.policy": "float32", "parallel.ep": 1}, hardware="cpu", model=tiny))
    attention = (64 + 2 * 4 * 64 + 2 * 32 + 128) * 4 + 16 * 32 * 4 + 4 * (24 + 6)
    assert plan["memory.workspace_token_bytes"] == 2 * 4 * 128 * 4 + attention
    assert plan["memory.index_scores_bytes"] == 4 * 256 * 65_552
