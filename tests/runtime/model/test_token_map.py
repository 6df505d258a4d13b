"""The Engram's token map on random tokenizers, whose classes are known by construction."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from random_tokenizer import draw_tokenizer

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map


@pytest.fixture
def constants(engine) -> Constants:  # type: ignore[no-untyped-def]
    return Constants.of(engine.plan)


@pytest.mark.parametrize("seed", range(8))
def test_the_classes_are_those_of_the_vocabulary(seed: int, constants: Constants, tmp_path: Path) -> None:
    drawn = draw_tokenizer(random.Random(seed))
    (tmp_path / "tokenizer.json").write_text(json.dumps(drawn.content), encoding="utf-8")
    sizes = {"vocab_size": drawn.tokens + 3, "engram_pad_token_id": 1, "engram_compressed_vocab_size": drawn.classes}
    mapped = engram_token_map(tmp_path, replace(constants, **sizes))
    assert len(mapped) == drawn.tokens + 3
    assert mapped[:3] == [0, 1, 2]
    assert mapped[drawn.tokens :] == [1, 1, 1]
    first_uses = [c for place, c in enumerate(mapped) if c not in mapped[:place]]
    assert first_uses == list(range(drawn.classes))


def test_the_tokenizer_must_define_the_pad_token(constants: Constants, tmp_path: Path) -> None:
    drawn = draw_tokenizer(random.Random(0))
    (tmp_path / "tokenizer.json").write_text(json.dumps(drawn.content), encoding="utf-8")
    sizes = {
        "vocab_size": drawn.tokens + 1,
        "engram_pad_token_id": drawn.tokens,
        "engram_compressed_vocab_size": drawn.classes,
    }
    with pytest.raises(
        InputError, match=rf"DI345.*defines {drawn.tokens} tokens.*engram_pad_token_id is {drawn.tokens}"
    ):
        engram_token_map(tmp_path, replace(constants, **sizes))
