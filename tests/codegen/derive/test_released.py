"""The released model at the settings of the design's table; numbers worked out by hand."""

from __future__ import annotations

import pytest
from shipped import shipped_plan

from deepinfer_gen.codegen.derive import derive

CANONICAL = {
    "model.runtime_max_model_len": 65536 + 5 + 6 + 5,
    "kv.main_row_bytes": 512 // 2 + 512 // 16,
    "kv.index_row_bytes": 128 // 2 + 128 // 32,
    "kv.swa_row_bytes": 512 + 512 // 32,
    "kv.bytes_per_token": 3 * (288 + 68) // 2 + 288 + 68,
    "kv.block_bytes": 113_920,
    "kv.block_padding": 0,
    "kv.blocks_per_seq": 513,
    "kv.source.8.offset": 22_784,
    "kv.source.8.index_offset": 22_784 + 64 * 288,
    "kv.source.20.rows": 128,
    "state.swa_ring_tokens": 134,
    "state.accumulator_ring_rows": 7,
    "state.stored_bytes": 1_415_040,
    "state.dropped_bytes": 1_713_312,
    "state.slot_bytes": 3_128_352,
    "state.num_slots": 154,
    "state.swa.42.offset": 42 * 70_752,
    "state.ca_state.14.offset": 43 * 70_752 + 2 * 28_672,
    "state.ica_state.14.bytes": 0,
    "graphs.max_total_q": 768,
    "graphs.count": 99,
    "graphs.max_rows": 130,
    "eplb.redundant_experts": 8,
    "parallel.local_experts": 49,
    "eplb.draft.local_experts": 17,
    "parallel.ranks": 8,
    "rope.compressed.low": 15,
    "rope.compressed.high": 25,
    "layers.23.kv_source": 20,
    "layers.23.index_source": 20,
    "yoco.first_consumer_layer": 20,
    "engram.1.rows": 384_006_168,
    "engram.14.rows": 384_016_682,
    "engram.1.multipliers": (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    "engram.14.multipliers": (67716810739261, 51510806800915, 30921347202721, 82619226485591),
    "weights.expert.bytes": 3 * 5120 * 2304 * 17 // 32,
}


@pytest.fixture(scope="module")
def plan(make):
    return derive(make())


@pytest.mark.parametrize("key", CANONICAL)
def test_canonical_value(plan, key):
    assert plan[key] == CANONICAL[key]


def test_graph_table(plan):
    sizes = plan.integers("graphs.sizes")
    assert sizes == (1, 2, 4, *range(8, 769, 8))
    rows = dict(zip(sizes, plan.integers("graphs.rows"), strict=True))
    assert {size: rows[size] for size in (1, 120, 128, 768)} == {1: 3, 120: 122, 128: 130, 768: 130}


def test_block_of_32_tokens_is_padded(make):
    plan = derive(make({"kv.block_size": 32}))
    assert (plan["kv.block_bytes"], plan["kv.block_padding"]) == (28_544, 64)


def test_wide_decode_has_one_spare_expert_a_rank(make):
    plan = derive(make({"parallel.ep": 64, "parallel.dp": 64, "parallel.cp": None, "engine.type": "COMPLETION"}))
    assert (plan["eplb.redundant_experts"], plan["parallel.local_experts"]) == (64, 7)
    assert (plan["eplb.draft.redundant_experts"], plan["eplb.draft.local_experts"]) == (64, 3)
    assert plan["parallel.ranks"] == 64


def test_prompt_engine_has_no_graphs(make):
    plan = derive(make({"engine.type": "PROMPT", "graphs.batch_size_interval": None, "eplb.min_redundant_per_rank": 4}))
    assert [plan[f"graphs.{name}"] for name in ("sizes", "rows", "lookup", "max_total_q")] == [(), (), (), 0]
    assert plan["memory.graphs_bytes"] == 0
    assert plan["eplb.redundant_experts"] == 32


def test_no_drafting_drops_draft_layers_and_state(make):
    plan = derive(make({"speculative.nextn": 0, "speculative.max_backtracking_tokens": 1}))
    assert "layers.40.ratio" not in plan
    assert "state.swa.40.offset" not in plan
    assert "eplb.draft.local_experts" not in plan
    assert plan["state.slot_bytes"] == 40 * 129 * 528 + 3 * 2 * 4096
    assert plan["graphs.max_total_q"] == 128
    drafting = derive(make())
    assert plan.integer("memory.weights_dense_bytes") == plan["weights.dense_bytes"]
    assert drafting["memory.weights_dense_bytes"] == plan.integer("weights.dense_bytes") + plan.integer(
        "weights.draft_dense_bytes"
    )


def test_sum_of_all_is_the_total(plan):
    parts = ["weights_dense", "weights_experts", "weights_engram", "block_kv", "state", "workspace", "graphs", "margin"]
    assert sum(plan.integer(f"memory.{p}_bytes") for p in parts) == plan["memory.total_bytes"]
    assert plan.integer("memory.total_bytes") <= plan.integer("memory.capacity_bytes") == 180 * 10**9


@pytest.mark.parametrize(
    ("placement", "rows", "on_host"),
    [
        ("sharded", 384_006_168 // 8 + -(-384_016_682 // 8), 0),
        ("replicated", 768_022_850, 0),
        ("host", 0, 768_022_850 * 264),
    ],
)
def test_engram_placement(make, enlarged, placement, rows, on_host):
    plan = derive(make({"parallel.engram_placement": placement}, hardware=enlarged("sm100", 10**12)))
    assert plan["memory.weights_engram_bytes"] == rows * 264
    assert plan["memory.host_engram_bytes"] == on_host


@pytest.mark.parametrize("hardware", ["", "-sm90", "-ascend950"])
def test_trap_44_cache_records_do_not_depend_on_the_hardware(hardware):
    """No target falls back to wider records, whose numbers and budgets are others."""
    plan = shipped_plan(f"v41-flash-normal-ep8{hardware}")
    formats = [plan[f"kv.{kind}_format"] for kind in ("swa", "main", "index")]
    assert formats == ["mxfp8_g32", "nvfp4_g16", "mxfp4_g32"]
    assert [plan[f"kv.{kind}_row_bytes"] for kind in ("swa", "main", "index")] == [528, 288, 68]


@pytest.mark.parametrize("nextn", range(6))
def test_trap_34_rings_have_room_for_rejected_drafts(make, nextn):
    """Beside the window of 128, or the open group of 2, the step's drafts and the token that they follow."""
    plan = derive(make({"speculative.nextn": nextn, "speculative.max_backtracking_tokens": nextn + 1}))
    assert plan["state.swa_ring_tokens"] >= 128 + nextn + 1
    assert plan["state.accumulator_ring_rows"] >= 2 + nextn
