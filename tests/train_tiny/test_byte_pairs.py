"""The tokenizer that is trained, and the one that is shipped."""

from __future__ import annotations

import json

import numpy as np
import pytest
from byte_pairs import PIECES, SPECIAL_TOKENS, token_ids, tokenizer_config, tokenizer_json, train_tokenizer
from fake_library import words
from hypothesis import example, given
from hypothesis import strategies as st

from deepinfer_gen.runtime.model.token_map import token_classes
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

PRESET = preset_folder("tiny-v41-code")
SHIPPED = Tokenizer(PRESET)
CODE = st.text(st.sampled_from(list("aZé_ .,:()\t\n0\"'#=é語\u00a0\f")), max_size=40)


def test_shipped_tokenizer_is_what_the_configuration_names() -> None:
    config = json.loads((PRESET / "config.json").read_text(encoding="utf-8"))
    text = config["text_config"]
    assert SHIPPED.vocab_size == text["vocab_size"] == 2048
    named = [config["bos_token_id"], config["eos_token_id"], config["pad_token_id"], text["dspark_noise_token_id"]]
    assert SHIPPED.convert_ids_to_tokens([*named, config["image_token_id"]]) == list(SPECIAL_TOKENS)
    assert text["engram_pad_token_id"] == SHIPPED.pad_token_id
    assert SHIPPED.all_special_ids == [0, 1, 2, 3, 4]


def test_number_of_engram_classes_is_that_of_the_shipped_tokenizer() -> None:
    import tokenizers

    shipped = tokenizers.Tokenizer.from_file(str(PRESET / "tokenizer.json"))
    config = json.loads((PRESET / "config.json").read_text(encoding="utf-8"))
    classes = token_classes(shipped, 2048)
    assert sorted(set(classes)) == list(range(config["text_config"]["engram_compressed_vocab_size"]))


@given(st.text(st.characters(exclude_categories=["Cs"])) | CODE)
@example("def f(x):\n    return x\n")
def test_shipped_tokenizer_gives_every_text_back_and_adds_nothing(text: str) -> None:
    ids = SHIPPED.encode(text)
    assert SHIPPED.decode(ids) == text
    assert not set(ids) & {0, 1, 2, 3, 4}


@given(CODE, CODE)
def test_a_text_cut_at_a_line_end_has_the_tokens_of_the_whole(first: str, second: str) -> None:
    """A prompt that ends with a head's colon must look as it did in training."""
    first = first.rstrip("\n") + ":"
    second = "\n" + second
    assert SHIPPED.encode(first) + SHIPPED.encode(second) == SHIPPED.encode(first + second)


@pytest.mark.parametrize("pieces", PIECES)
def test_pieces_end_where_they_should(pieces: str) -> None:
    split = train_tokenizer([words(1)], pieces).pre_tokenizer
    assert split is not None
    text = "    def _f(x):\n\n        return 12345 +  __x\n"
    found = [text[start:end] for _, (start, end) in split.pre_tokenize_str(text)]
    assert "".join(found) == text
    assert found[:2] == ["    ", "def"]  # what a prompt of a method begins with
    assert "\n\n        " in found
    assert "return" in found
    assert found[-1] == "\n"
    assert {len(piece.strip()) for piece in found if piece.strip().isdigit()} == {3, 2}


def test_training_is_deterministic_and_its_short_form_is_the_same_tokenizer() -> None:
    texts = [words(seed) for seed in range(30)]
    first, second = (train_tokenizer(iter(texts), "words") for _ in range(2))
    assert tokenizer_json(first) == tokenizer_json(second)
    short = type(first).from_str(tokenizer_json(first))
    assert short.to_str() == first.to_str()
    assert short.get_vocab_size() == 2048
    assert len(tokenizer_json(first)) < 0.6 * len(first.to_str(pretty=True))


def test_token_files_have_each_text_between_bos_and_eos_and_no_other_special_token() -> None:
    tokenizer = train_tokenizer([words(1)], "words")
    texts = ["a = '<pad>'\n", "", "é"]
    ids = token_ids(tokenizer, texts)
    assert ids.dtype == np.uint16
    borders = np.flatnonzero(ids < 5)
    assert ids[borders].tolist() == [0, 1] * 3
    parts = [ids[a + 1 : b].tolist() for a, b in borders.reshape(-1, 2)]
    assert [tokenizer.decode(part, skip_special_tokens=False) for part in parts] == texts


def test_config_names_the_tokens_and_adds_no_bos() -> None:
    assert json.loads((PRESET / "tokenizer_config.json").read_text(encoding="utf-8")) == tokenizer_config()
    assert (SHIPPED.bos_token_id, SHIPPED.eos_token_id, SHIPPED.pad_token_id) == (0, 1, 2)
    assert SHIPPED.encode("x") == SHIPPED.encode("x", add_special_tokens=False)
