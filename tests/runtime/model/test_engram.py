"""Engram: token classes, hashes and history against the reference's tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.engram import ngram_classes
from deepinfer_gen.runtime.model.token_map import engram_token_map


def test_token_map(engine: Any, checkpoint: Path, oracle: Mapping[str, Any]) -> None:
    assert engram_token_map(checkpoint, Constants.of(engine.plan)) == oracle["token_map"].tolist()


def test_trap_17_another_number_of_classes_is_refused(
    engine: Any, helpers: Any, checkpoint: Path, tmp_path: Path
) -> None:
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["different"] = vocabulary.pop("W0")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"DI345.*260 Engram token classes.*259"):
        engram_token_map(tmp_path, Constants.of(engine.plan))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="DI344"):
        engram_token_map(tmp_path, Constants.of(engine.plan))
    with pytest.raises(InputError, match=r"DI344.*no tokenizer.json"):
        engram_token_map(tmp_path / "absent", Constants.of(engine.plan))


def test_classes_follow_the_texts(engine: Any, helpers: Any, tmp_path: Path) -> None:
    """Case, accents, width and blanks do not count; a lone space and a part of a character keep their own classes."""
    words = ["The", "the", " ", "  ", "é", "e", "ｅ", "\ufffda", "\ufffdb", ""]
    model = {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "The"}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "added_tokens": [],
                 "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    constants = helpers.replace(Constants.of(engine.plan), vocab_size=12, engram_compressed_vocab_size=6)
    assert engram_token_map(tmp_path, constants) == [0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 1, 1]


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
