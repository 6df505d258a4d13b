"""What ``derive`` refuses, and where it points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.diagnostics import InputError


def fault(resolved):
    with pytest.raises(InputError) as caught:
        derive(resolved)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help
    return diagnostic


def test_row_of_a_broken_byte(make, released):
    found = fault(make({"kv.index_format": "mxfp4_g32"}, model=replace(released, index_head_dim=40)))
    assert (found.code, found.place) == ("DI100", "case.yaml:7:3")
    assert "index_head_dim 40" in found.message


def test_elements_of_index_rows_begin_at_multiples_of_their_size(make, released):
    narrow = replace(released, head_dim=96)  # 96 / 2 + 96 / 16 = 54 bytes a main row
    one_row = {"kv.block_size": 2, "kv.index_format": "fp32"}
    found = fault(make(one_row, model=narrow))
    assert (found.code, found.place) == ("DI440", "case.yaml:7:3")
    assert "fp32 begin behind 1 main rows of 54 bytes, at byte 54 " in found.message
    for allowed in ({"kv.block_size": 4}, {"kv.index_format": "bf16"}, {"kv.index_format": "mxfp4_g32"}):
        derive(make(one_row | allowed, model=narrow))


def test_a_recomputed_truncation_depends_on_the_batch(make):
    keys = ("schedule.stop_preempted_request", "determinism.batch_invariant", "yoco.mode")
    found = fault(make(dict(zip(keys, (False, True, "mask"), strict=True))))
    assert (found.code, found.place) == ("DI441", "case.yaml:7:3")
    assert "where yoco.mode is mask" in found.message
    for values in ((True, True, "mask"), (False, False, "compact"), (False, True, "off")):
        derive(make(dict(zip(keys, values, strict=True))))


def test_engram_tables_of_another_size(make, released):
    found = fault(make(model=replace(released, engram_num_embeddings=(384_006_168, 384_016_683))))
    assert (found.code, found.place) == ("DI101", "case.yaml")
    assert "layer 14" in found.message
    assert "384016683" in found.message
    assert "384016682" in found.message


def test_fixed_parts_over_capacity(make, enlarged):
    resolved = make({"limits.max_num_seqs": 128}, hardware=enlarged("sm100", 80 * 10**9))
    found = fault(resolved)
    assert (found.code, found.place) == ("DI102", "case.yaml:7:3")
    assert "weights_experts" in found.message
    assert "parallel.ep" in found.help


def test_given_blocks_over_capacity(make):
    found = fault(make({"kv.num_blocks": 2_000_000}))
    assert (found.code, found.place) == ("DI102", "case.yaml:7:3")
    most = int(found.help.split("at most ")[1].split()[0])
    assert derive(make({"kv.num_blocks": most}))["kv.num_blocks"] == most
    assert fault(make({"kv.num_blocks": most + 1})).code == "DI102"


def test_one_longest_sequence_must_fit(make):
    assert derive(make({"kv.num_blocks": 514}))["kv.num_blocks"] == 514
    found = fault(make({"kv.num_blocks": 513}))
    assert (found.code, found.place) == ("DI103", "case.yaml:7:3")


def test_auto_blocks_that_hold_no_sequence_point_at_the_length(make, enlarged):
    plan = derive(make())
    taken = plan.integer("memory.fixed_bytes") - plan.integer("memory.margin_bytes")
    memory = (taken + 100 * 113_920) * 20 // 19  # the margin is a twentieth
    found = fault(make({"limits.max_model_len": 65536}, hardware=enlarged("sm100", memory)))
    assert (found.code, found.place) == ("DI103", "case.yaml:7:3")


def test_kernel_over_on_chip_memory(make, enlarged):
    table = enlarged("sm90", 141 * 10**9)
    small = replace(table.settings["shared_memory_bytes"], value=100_000)
    found = fault(make(hardware=replace(table, settings={**table.settings, "shared_memory_bytes": small})))
    assert found.code == "DI104"
    assert "100,000" in found.message


def test_auto_blocks_fill_the_memory_but_never_exceed_the_need(make, enlarged):
    plan = derive(make())
    assert plan["kv.num_blocks"] == 128 * 513 + 1
    taken = plan.integer("memory.fixed_bytes") - plan.integer("memory.margin_bytes")
    tight = derive(make(hardware=enlarged("sm100", (taken + 20_000 * 113_920) * 20 // 19)))
    assert 514 <= tight.integer("kv.num_blocks") < 128 * 513 + 1
    spare = tight.integer("memory.capacity_bytes") - tight.integer("memory.total_bytes")
    assert 0 <= spare < tight.integer("kv.block_bytes")
