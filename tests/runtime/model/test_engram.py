"""Engram: token classes, hashes and history against the reference's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_gen.runtime.model.engram import ngram_classes


@pytest.mark.parametrize("chunk", [1, 2, 7, 300])
def test_trap_20_rows_do_not_depend_on_the_chunks(
    chunk: int, model: Any, make_driver: Any, oracle: Mapping[str, Any]
) -> None:
    driver = make_driver()
    sequence = driver.add(oracle["p300_ids"][:60])
    found: list[list[torch.Tensor]] = [[], []]
    while sequence.done < 60:
        count = min(chunk, 60 - sequence.done)
        batch = driver.batch([(sequence, count)])
        ngrams = ngram_classes(batch, model.token_map, model.token_map[2])
        for rows, layer in zip(found, (1, 4), strict=True):
            rows.append(model.layers[layer].engram.rows(ngrams))
        sequence.done += count
    for i in range(2):
        np.testing.assert_array_equal(torch.cat(found[i]).numpy(), oracle["engram_rows_p300"][:60, i])


def test_trap_18_hashes_are_exact_in_64_bits(model: Any) -> None:
    """Products beyond 2^53 against Python's integers."""
    engram = model.layers[1].engram
    classes = [258, 257, 3, 255]
    products = [c * m for c, m in zip(classes, engram.multipliers.tolist(), strict=True)]
    assert max(products) > 2**53
    expected, rolling = [], products[0]
    for order in range(3):
        rolling ^= products[order + 1]
        primes, offsets = engram.primes[order].tolist(), engram.offsets[order].tolist()
        expected += [rolling % p + o for p, o in zip(primes, offsets, strict=True)]
    assert engram.rows(torch.tensor([classes]))[0].tolist() == expected
