"""Layer roles of both shipped models, written out from the table of the model's description."""

from __future__ import annotations

import pytest

from deepinfer_gen.codegen.derive import derive

N = None
RELEASED_SOURCES = {  # first layer: (ratio, KV source), valid up to the next entry
    0: (0, N), 2: (2, 2), 8: (2, 8), 14: (2, 14), 20: (1, 20), 40: (0, N),
}  # fmt: skip
RELEASED_INDEX = {0: N, 2: 2, 8: 8, 14: 14, 20: 20, 24: 24, 28: 28, 32: 32, 36: 36, 40: N}


def latest(table, layer):
    return table[max(first for first in table if first <= layer)]


@pytest.mark.parametrize("layer", range(43))
def test_released_layer(make, layer):
    plan = derive(make())
    ratio, kv_source = latest(RELEASED_SOURCES, layer)
    assert plan[f"layers.{layer}.ratio"] == ratio
    assert plan[f"layers.{layer}.kv_source"] == kv_source
    assert plan[f"layers.{layer}.index_source"] == latest(RELEASED_INDEX, layer)
    role = {20: "source", 24: "consumer", 28: "consumer", 32: "consumer", 36: "consumer"}.get(layer, "none")
    assert plan[f"layers.{layer}.candidate_role"] == role
    assert plan[f"layers.{layer}.engram"] is (layer in (1, 14))
    assert plan[f"layers.{layer}.rope"] == ("base" if layer < 2 or layer >= 40 else "compressed")
    assert plan[f"layers.{layer}.stored"] is (layer < 20)


def test_tiny_roles(make, tiny):
    changes = {"kv.main_format": "fp32", "kv.index_format": "fp32", "kv.swa_format": "fp32", "parallel.ep": 1}
    plan = derive(make(changes, model=tiny))
    layers = range(13)
    assert [plan[f"layers.{i}.ratio"] for i in layers] == [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0]
    assert [plan[f"layers.{i}.kv_source"] for i in layers] == [N, N, 2, 2, 4, 4, 6, 6, 6, 6, N, N, N]
    assert [plan[f"layers.{i}.index_source"] for i in layers] == [N, N, 2, 2, 4, 4, 6, 6, 8, 8, N, N, N]
    assert [i for i in layers if plan[f"layers.{i}.candidate_role"] != "none"] == [6, 8]
    assert [i for i in layers if plan[f"layers.{i}.engram"]] == [1, 4]
    assert [i for i in layers if plan[f"layers.{i}.stored"]] == [0, 1, 2, 3, 4, 5]


def test_rope_without_scaling_is_plain(make, released):
    from dataclasses import replace

    plain = replace(released, rope_scaling=replace(released.rope_scaling, factor=1))
    plan = derive(make(model=plain))
    assert [plan[f"rope.compressed.{k}"] for k in ("theta", "factor", "low", "high")] == [160000, 1, 0, 0]
