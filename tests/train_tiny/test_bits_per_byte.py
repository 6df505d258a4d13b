"""Bits of a text against one whole forward pass, and the compressors beside them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from bits_per_byte import Row, model_bits, rows_of
from checkpoint_model import CheckpointModel
from compressors import xz_bytes, xz_solid_bytes, zlib_bytes
from paged_driver import Driver


def forward_bits(checkpoint: CheckpointModel, ids: Sequence[int]) -> list[float]:
    """Bits of each of ``ids[1:]`` from one step over all before it, by the definition of softmax."""
    driver = Driver(checkpoint.model, checkpoint.layout)
    logits = driver.prefill(driver.add(ids[:-1])).double()
    odds = torch.exp(logits - logits.amax(1, keepdim=True))
    return [-float(np.log2(float(row[token] / row.sum()))) for row, token in zip(odds, ids[1:], strict=True)]


def test_bits_are_those_of_one_whole_forward(checkpoint: CheckpointModel, oracle: Mapping[str, Any]) -> None:
    """Texts longer and shorter than a chunk of the prefill, run together."""
    texts = [oracle["p300_ids"].tolist(), [17, 400], oracle["p300_ids"][100:230].tolist(), []]
    found = model_bits(checkpoint, texts, rows=3, row_tokens=1024, overlap=512)
    assert (checkpoint.bos, checkpoint.eos) == (0, 1)
    expected = [sum(forward_bits(checkpoint, [0, *text, 1])) for text in texts]
    assert found == pytest.approx(expected, rel=1e-4)


def test_each_row_begins_with_its_context(checkpoint: CheckpointModel, oracle: Mapping[str, Any]) -> None:
    text = oracle["p300_ids"][:200].tolist()
    found = model_bits(checkpoint, [text], rows=8, row_tokens=90, overlap=30)
    coded = [0, *text, 1]
    # Tokens 1 to 90, then always 60 with 30 tokens before the first of them.
    expected = sum(forward_bits(checkpoint, coded[:91]))
    expected += sum(forward_bits(checkpoint, coded[61:152])[29:])
    expected += sum(forward_bits(checkpoint, coded[122:202])[29:])
    assert found == pytest.approx([expected], rel=1e-4)


@pytest.mark.parametrize(("length", "row", "overlap"), [(2, 8, 4), (9, 8, 4), (10, 8, 4), (50, 8, 1), (50, 8, 7)])
def test_every_token_is_paid_for_once(length: int, row: int, overlap: int) -> None:
    rows = list(rows_of(3, length, row, overlap))
    assert [token for part in rows for token in range(part.scored, part.stop + 1)] == list(range(1, length))
    assert all(part.stop - part.start <= row for part in rows)
    assert rows[0] == Row(3, 0, min(row, length - 1), 1)
    assert all(part.scored - part.start == overlap for part in rows[1:])


def test_an_overlap_that_leaves_nothing_to_score_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap of 8"):
        next(rows_of(0, 50, 8, 8))


def test_compressors_code_each_file_or_what_it_adds() -> None:
    texts = [bytes(np.random.default_rng(seed).integers(0, 256, 5000, np.uint8)) for seed in (1, 2)]
    other = bytes(np.random.default_rng(3).integers(0, 256, 40_000, np.uint8))
    assert zlib_bytes(texts) == sum(len(zlib.compress(text, 9)) for text in texts)
    assert zlib_bytes(texts, texts[0] + other) > 10_000, "the first text is out of reach"
    assert zlib_bytes(texts, other + texts[0]) < 5_200
    assert xz_bytes(texts) > 10_000
    assert 5_000 < xz_solid_bytes(texts, [texts[0], other]) < 6_000
