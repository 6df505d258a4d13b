"""Bytes of a step of the released model, worked out by hand from the sizes of tensors and cache records."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_gen.runtime.bytes_estimator import BytesEstimator, expected_experts
from deepinfer_gen.runtime.step_rows import StepRows

# tests/golden/tables/v41-flash-weights.yaml adds these up tensor by tensor.
LAYER, HEAD, EXPERT = 170_055_128, 129_280 * 5120 * 2 + 5120 * 2, 18_800_640
SOURCES = 36_704_256 + 45_130_752  # compressors and indexers of all sources
ENGRAM = 315_043_840
DRAFT_LAYER, DRAFT_GLOBALS = 167_431_640, 211_133_952
MAIN, INDEX, WINDOW, ACCUMULATOR = 288, 68, 528, 4096


@pytest.fixture(scope="module")
def decode(decode_engine: Any) -> BytesEstimator:
    return BytesEstimator(decode_engine.model, decode_engine.values)


@pytest.fixture(scope="module")
def truncated(normal_engine: Any) -> BytesEstimator:
    return BytesEstimator(normal_engine.model, normal_engine.values)


def test_a_decode_step_of_two_rows_with_drafts(decode: BytesEstimator) -> None:
    """Six queries at positions 19,995 to 20,000, and one at position 0 of a new sequence that drafts too."""
    step = decode.step(StepRows.of([6, 1], [20_001, 1], logits_rows=7, drafting=[1, 1]))
    embedded = (7 + 2 * 5) * 5120 * 2
    assert step.dense_weights == embedded + 40 * LAYER + SOURCES + ENGRAM + HEAD + 3 * DRAFT_LAYER + DRAFT_GLOBALS
    # 24 n-gram rows of 264 bytes a token in both Engram layers.
    assert step.engram_rows == 7 * 2 * 24 * 264

    # Earlier window rows: 127 of 19,995 before the long row, none before the new one. The draft blocks read 128 and 1.
    window = 40 * 127 * WINDOW + 3 * (128 + 1) * WINDOW
    # The long row begins in the middle of a pair, 19,995 being odd: one accumulator row in layers 2, 8 and 14.
    accumulators = 3 * 1 * ACCUMULATOR
    # Each query gathers its own 512 entries in 38 layers; the new row's query has one entry where the ratio is 1.
    entries = 38 * 6 * 512 * MAIN + 20 * 1 * MAIN
    # Index keys once a row: 10,000 pairs three times, 20,001 entries in layer 20, and in the four later sources no
    # more than there are, since six queries may have six different sets of 16,384 candidates.
    keys = (3 * 10_000 + 5 * 20_001 + 5 * 1) * INDEX
    assert step.cache_read == window + accumulators + entries + keys

    # Window rows of 43 layers for seven tokens (the draft layers store target rows). Entries completed: pairs ending at
    # 19,995, 19,997 and 19,999; all seven tokens where the ratio is 1.
    completed = (3 * 3 + 7) * (MAIN + INDEX)
    assert step.cache_written == 43 * 7 * WINDOW + completed + 3 * 7 * ACCUMULATOR


def test_one_query_scores_its_candidates_only(decode: BytesEstimator) -> None:
    step = decode.step(StepRows.of([1], [20_001], logits_rows=1))
    keys = (3 * 10_000 + 20_001 + 4 * 16_384) * INDEX
    # Position 20,000 is even and begins a pair: no accumulator row is open.
    assert step.cache_read == 40 * 127 * WINDOW + 38 * 512 * MAIN + keys


def test_without_drafts_a_step_only_stores_their_window_rows(decode: BytesEstimator) -> None:
    with_drafts = decode.step(StepRows.of([1], [1], logits_rows=1, drafting=[1])).dense_weights
    without = decode.step(StepRows.of([1], [1], logits_rows=1)).dense_weights
    main_proj, wkv = 5120 * 15360 + 160 * 480 + 5120 * 2, 512 * 5120 + 16 * 160
    assert with_drafts - without == 3 * DRAFT_LAYER + DRAFT_GLOBALS + 5 * 5120 * 2 - main_proj - 3 * wkv


def test_a_chunk_that_keeps_no_row_stops_at_the_shared_entries(truncated: BytesEstimator) -> None:
    """256 tokens of a long prompt: layers 0 to 19 and layer 20's compressor run, nothing behind it."""
    step = truncated.step(StepRows.of([256], [512], kept=[0], floor=[860], logits_rows=0))
    layer_20_keys = 512 * 5120 * 2 + 512 * 2 + 128 * 512 * 2 + 128 * 2
    gated = 3 * (layer_20_keys + 512 * 5120 * 2)
    indexers = 3 * (4096 * 1280 + 128 * 40 + 32 * 5120 * 2)
    assert step.dense_weights == 256 * 10_240 + 20 * LAYER + layer_20_keys + gated + indexers + ENGRAM
    # 128 pairs in three sources and 256 entries; rings keep 134 rows, accumulator rings 7.
    written = (3 * 128 + 256) * (MAIN + INDEX) + 20 * 134 * WINDOW + 3 * 7 * ACCUMULATOR
    assert step.cache_written == written
    selected = 18 * sum(min(n // 2, 512) for n in range(257, 513)) * MAIN
    assert step.cache_read == 20 * 127 * WINDOW + selected + 3 * 256 * INDEX


def test_expected_experts() -> None:
    # One token of eight experts, two each: a given expert is hit with 1/4; two tokens: 1 - (3/4)^2 = 7/16.
    assert expected_experts(8, 8, 2, 1) == pytest.approx(2.0)
    assert expected_experts(8, 8, 2, 2) == pytest.approx(3.5)
    assert expected_experts(2, 8, 2, 2) == pytest.approx(0.875)
    assert expected_experts(8, 8, 2, 0) == 0.0


def test_expert_weights_expected_and_counted(decode: BytesEstimator, truncated: BytesEstimator) -> None:
    """Decode: 7 of 448 expert slots a rank, 3 of 192 in draft layers; 64 ranks with 128 tokens, 640 draft positions."""
    rows = StepRows.of([1] * 128, [500] * 128, logits_rows=128, drafting=[1] * 128)
    backbone = 7 * (1 - (1 - 6 / 448) ** (64 * 128))
    drafts = 3 * (1 - (1 - 3 / 192) ** (64 * 128 * 5))
    assert decode.step(rows).expert_weights == pytest.approx((40 * backbone + 3 * drafts) * EXPERT)
    chosen = dict.fromkeys(range(40), 5) | {40: 3, 41: 2, 42: 1}
    assert decode.step(rows, chosen_experts=chosen).expert_weights == (40 * 5 + 6) * EXPERT
    # Prefill: 49 of 392 slots; behind the cut only the kept row chooses.
    step = truncated.step(StepRows.of([8], [8], kept=[1], floor=[7], logits_rows=1))
    before, behind = (49 * (1 - (1 - 6 / 392) ** (8 * n)) for n in (8, 1))
    assert step.expert_weights == pytest.approx(20 * (before + behind) * EXPERT)
