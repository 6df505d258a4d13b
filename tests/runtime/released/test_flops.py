"""FLOPs of a step of the released model against numbers worked out by hand and against a loop over queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_gen.runtime.bytes_estimator import BytesEstimator
from deepinfer_gen.runtime.flops_estimator import FlopsEstimator
from deepinfer_gen.runtime.step_rows import StepRows

# Matrices of a token in one layer, by the released shapes: wq_a, wq_b, wkv, wo_a, wo_b; an expert; the gate.
ATTENTION = 1280 * 5120 + 32768 * 1280 + 512 * 5120 + 8192 * 4096 + 5120 * 8192  # 126,615,552
EXPERT = 3 * 2304 * 5120  # 35,389,440
GATE = 384 * 5120
# Two sites: 24 coefficients from 20,480 numbers; collapse 4, mix 4 x 4 and add 4 times the output, 5120 channels each.
HYPER = 2 * (24 * 20480 + (4 + 16 + 4) * 5120)  # 1,228,800 multiply-adds
INDEX = 4096 * 1280 + 32 * 5120
SOURCE = 512 * 5120 + 128 * 512  # compressor and index key; the gate at ratio 2 is another 512 x 5120
HEAD = 129280 * 5120 + 4 * 5120  # and the last collapse
ENGRAM = 25600 * 6144 + 2 * 4 * 5120  # and four dot products, four additions of the gated value
# An attended row: 64 heads of 512, once as key and once as value. A scored entry: 32 heads of 128, then their sum.
ROW, ENTRY = 2 * 64 * 512, 32 * 128 + 32


@pytest.fixture(scope="module")
def decode(decode_engine: Any) -> FlopsEstimator:
    return FlopsEstimator(decode_engine.model, decode_engine.values)


@pytest.fixture(scope="module")
def truncated(normal_engine: Any) -> FlopsEstimator:
    return FlopsEstimator(normal_engine.model, normal_engine.values)


def test_first_token_of_a_sequence(decode: FlopsEstimator) -> None:
    """Position 0 sees itself in 40 windows and in the 20 layers of ratio 1; a pair is not complete yet."""
    step = decode.step(StepRows.of([1], [1], logits_rows=1))
    assert step.dense == 2 * 40 * (ATTENTION + EXPERT + GATE) == 13_117_685_760
    assert step.experts == 2 * 40 * 6 * EXPERT == 16_986_931_200
    assert step.hyper_connections == 2 * 40 * HYPER == 98_304_000
    assert step.attention == 2 * (40 + 20) * ROW == 7_864_320
    assert step.compressor == 2 * (4 * SOURCE + 3 * 512 * 5120) == 37_224_448
    assert step.indexer == 2 * (8 * INDEX + 5 * ENTRY) == 86_548_800
    assert step.engram == 2 * 2 * ENGRAM == 629_309_440
    assert step.head == 2 * HEAD == 1_323_868_160
    assert step.draft == 2 * (5120 * 15360 + 3 * 512 * 5120)  # the row's window rows in the draft layers


def test_six_rows_of_a_long_sequence_and_a_block_of_drafts(decode: FlopsEstimator) -> None:
    """Positions 19,995 to 20,000: windows and selections are full, candidates restrict the later index sources."""
    step = decode.step(StepRows.of([6], [20_001], logits_rows=6, drafting=[1]))
    assert step.attention == 2 * 6 * (40 * 128 + 38 * 512) * ROW
    pairs = 9998 + 9998 + 9999 + 9999 + 10_000 + 10_000
    tokens = sum(range(19_996, 20_002))
    scored = 3 * pairs + tokens + 4 * 6 * 2048 * 8
    assert step.indexer == 2 * (6 * 8 * INDEX + scored * ENTRY)
    # Three draft layers with 3 of 128 experts; five positions attend to 128 window rows and the block of five.
    draft_layer = ATTENTION + 4 * EXPERT + 128 * 5120 + HYPER
    target_row = 5120 * 15360 + 3 * 512 * 5120
    draft_head = HEAD + 129280 * 256 + 5376
    assert step.draft == 2 * (6 * target_row + 3 * 5 * (draft_layer + (128 + 5) * ROW) + 5 * draft_head)
    assert step.total == sum(
        (step.dense, step.experts, step.hyper_connections, step.attention, step.compressor, step.indexer, step.engram,
         step.head, step.draft)
    )  # fmt: skip


def test_active_parameters_are_half_of_the_products(decode_engine: Any, decode: FlopsEstimator) -> None:
    """15.05 B in 40 layers, 15.47 B with Engram, indexer, compressor and mHC, 16.13 B with the head."""
    value = {key: entry["value"] for key, entry in decode_engine.values.items()}
    layer = ATTENTION + 7 * EXPERT + GATE
    assert value["active.backbone"] == 40 * layer == 15_052_308_480
    assert value["active.encoder"] == 20 * layer == 7_526_154_240
    extras = 2 * 25600 * 6144 + 8 * INDEX + 4 * SOURCE + 3 * 512 * 5120 + 40 * 2 * 24 * 20480
    assert value["active.backbone_all"] == 40 * layer + extras == 15_468_068_864
    encoder_extras = 2 * 25600 * 6144 + 3 * INDEX + 3 * (SOURCE + 512 * 5120) + 20 * 2 * 24 * 20480
    assert value["active.encoder_all"] == 20 * layer + encoder_extras == 7_892_533_248
    assert value["active.decode"] == 40 * layer + extras + 129280 * 5120 == 16_129_982_464
    step = decode.step(StepRows.of([1], [1], logits_rows=1))
    assert value["flops.token"] == step.total - step.attention - step.draft - 2 * 5 * ENTRY
    streams = 2 * 40 * 24 * 5120 + 2 * 2 * 4 * 5120 + 4 * 5120  # products that no parameter takes part in
    assert value["flops.token"] == 2 * (value["active.decode"] + streams)


ROWS = st.lists(st.tuples(st.integers(1, 700), st.integers(0, 40_000), st.integers(0, 700)), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS)
def test_ragged_truncated_rows_against_a_loop_over_queries(truncated: FlopsEstimator, rows: Any) -> None:
    """Every query by itself; behind the cut the kept ones only, whose windows begin at the floor."""
    queries = [q for q, _, _ in rows]
    keys = [q + before for q, before, _ in rows]
    kept = [min(q, k) for q, _, k in rows]
    floor = [k - n for k, n in zip(keys, kept, strict=True)]
    attended = scored = run = 0
    for q, k, n, low in zip(queries, keys, kept, floor, strict=True):
        run += 20 * q + 20 * n
        for seen in range(k - q + 1, k + 1):
            window = min(seen, 128)
            attended += 2 * window + 18 * (window + min(seen // 2, 512))
            scored += 3 * (seen // 2)
            if seen > k - n:
                attended += 20 * (min(seen - low, 128) + min(seen, 512))
                scored += seen + 4 * min(seen, 16_384)
    step = truncated.step(StepRows.of(queries, keys, logits_rows=0, kept=kept, floor=floor))
    all_rows, kept_rows = sum(queries), sum(kept)
    assert step.attention == 2 * attended * ROW
    assert step.indexer == 2 * ((3 * all_rows + 5 * kept_rows) * INDEX + scored * ENTRY)
    assert step.dense == 2 * run * (ATTENTION + EXPERT + GATE)
    assert step.compressor == 2 * all_rows * (4 * SOURCE + 3 * 512 * 5120)
    assert step.draft == 2 * kept_rows * (5120 * 15360 + 3 * 512 * 5120)
    assert step.head == 0


@pytest.mark.parametrize("targets", [(37, 38, 39), (2, 19, 39), (1, 2, 3)])
def test_drafts_take_the_kept_rows_wherever_their_targets_lie(normal_engine: Any, targets: tuple[int, ...]) -> None:
    """Features from before the cut are dropped with their rows there: rings hold what the last layers kept."""
    model = normal_engine.model
    model = replace(model, draft=replace(model.draft, target_layers=targets))
    rows = StepRows.of([256], [512], logits_rows=1, kept=[100], floor=[412], drafting=[1])
    flops = FlopsEstimator(model, normal_engine.values).step(rows)
    # 100 rows are stored; a block of 5 attends to 100 rows and itself in three layers.
    block = FlopsEstimator(model, normal_engine.values).step(StepRows.of([100], [100], logits_rows=1, drafting=[1]))
    assert flops.draft == block.draft
    step = BytesEstimator(model, normal_engine.values).step(rows)
    plain = BytesEstimator(replace(model, draft=None), normal_engine.values).step(rows)
    assert step.cache_written - plain.cache_written == 3 * 100 * 528
    assert step.cache_read - plain.cache_read == 3 * 100 * 528


def test_rows_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of \[3\] queries"):
        StepRows.of([3], [2], logits_rows=0)
    with pytest.raises(ValueError, match=r"\[4\] of them kept"):
        StepRows.of([3], [3], kept=[4], logits_rows=0)
