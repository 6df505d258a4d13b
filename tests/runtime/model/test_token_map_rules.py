"""The Engram token map: each rule by itself, all of them together against a second writing, and the reference's map.

``tests/oracle/released_token_map.py`` builds that of the released vocabulary.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.token_map import engram_token_map

# Unicode's White_Space; str.strip also takes the separators U+001C .. U+001F.
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2028\u2029\u202f\u205f\u3000"
LETTERS = "aAeEéÉèÅ\u212bßẞΣςσİıǅK\u212aﬁ①½㎏ｅＥ가ｱﾞ中\u0301\u0308\u093e\u20dd\u200b.\ufffd\ue000"


def write(folder: Path, words: Sequence[str], special: Sequence[str] = (), **parts: Any) -> None:
    """A ``tokenizer.json`` whose ids are the places of ``words``, then of the ``special`` tokens."""
    vocabulary = {word: i for i, word in enumerate(words)}
    assert len(vocabulary) == len(words), "words must differ"
    added = [
        {"id": len(words) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, content in enumerate(special)
    ]  # fmt: skip
    content = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "added_tokens": added,
               "pre_tokenizer": None, "post_processor": None, "decoder": None,
               "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": words[0]}} | parts  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def classes(folder: Path, size: int, count: int, pad: int = 0) -> list[int]:
    """The map of a vocabulary of ``size`` ids, which must have ``count`` classes."""
    constants: Any = SimpleNamespace(vocab_size=size, engram_compressed_vocab_size=count, engram_pad_token_id=pad)
    return engram_token_map(folder, constants)


def numbered(keys: Sequence[str]) -> list[int]:
    """Distinct keys in the order of their first ids."""
    order = list(dict.fromkeys(keys))
    return [order.index(key) for key in keys]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        pytest.param("ﬁ", "fi", True, id="NFKC parts a ligature"),
        pytest.param("①", "1", True, id="NFKC takes the circle away"),
        pytest.param("ｅ", "e", True, id="NFKC takes the width away"),
        pytest.param("\u212b", "å", True, id="the unit Ångström is the letter"),
        pytest.param("e\u0301", "é", True, id="composed or not"),
        pytest.param("é", "e", True, id="accent"),
        pytest.param("ș", "ş", True, id="two accents below"),
        pytest.param("ø", "o", False, id="a stroke is no accent"),
        pytest.param("中", "国", False, id="signs without case or accents"),
        pytest.param("The", "tHE", True, id="case"),
        pytest.param("Σ", "ς", False, id="case folds letter by letter: a final sigma is another"),
        pytest.param("ß", "ss", False, id="lower case is no case folding"),
        pytest.param(" a", "a", True, id="blank before"),
        pytest.param("a\t\r\n ", "a", True, id="run of blanks after"),
        pytest.param("a  b", "a\nb", True, id="run of blanks within"),
        pytest.param("a b", "ab", False, id="a blank within stays"),
        pytest.param("\x0ba", "a", True, id="strip knows more blanks than the run does"),
        pytest.param("a\x0bb", "a b", False, id="but within they are no run"),
        pytest.param(" ", "\n\n\t", True, id="only blanks: one space"),
        pytest.param(" ", "\u3000", True, id="wide space is a space by NFKC"),
        pytest.param(" ", "\x0b", False, id="empty after strip: the text itself"),
        pytest.param("\x0b", "\x0c", False, id="two texts that are empty after strip"),
        pytest.param("\u0301", "\u0300", False, id="accents alone are their own texts"),
        pytest.param(" ", "\ue000", True, id="the space's sentinel comes out as a space"),
        pytest.param("\ufffdA", "\ufffda", False, id="the raw token of a part of a character is not normalised"),
        pytest.param(" \ufffd", "\ufffd", False, id="nor stripped"),
    ],
)
def test_rule(one: str, other: str, alike: bool, tmp_path: Path) -> None:
    write(tmp_path, [one, other])
    assert classes(tmp_path, 2, 1 if alike else 2) == ([0, 0] if alike else [0, 1])


def test_special_tokens_are_kept(tmp_path: Path) -> None:
    """Left out, all of them would decode to nothing, and share one class."""
    write(tmp_path, ["a", "<s>"], ["<S> ", "<pad>", "<PAD>", "A"])
    assert classes(tmp_path, 6, 3) == [0, 1, 1, 2, 2, 0]


def test_parts_of_characters_count_by_their_raw_tokens(tmp_path: Path) -> None:
    """Byte-level tokens: Ã and © are the bytes of é, each alone no character; together they are one."""
    words = ["Ã", "©", "Ã©", "e", "Ġ", "Ġe", "Ċ", "ã", "A", "ï¿½", "Ġ©"]
    model = {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": [], "dropout": None,
             "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False}  # fmt: skip
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    write(tmp_path, words, model=model, decoder=decoder)
    # "é" and "e" are one class, " " and a line's end too, and " e" is "e". The bytes of U+FFFD stand for themselves.
    keys = ["Ã", "©", "e", "e", " ", "e", " ", "ã", "a", "ï¿½", "Ġ©"]
    assert classes(tmp_path, len(words), 8) == numbered(keys) == [0, 1, 2, 2, 3, 2, 3, 4, 5, 6, 7]


def written_again(text: str, raw: str) -> str:
    """The key of a token, with Python's own tables; ``raw`` is empty for a text that is whole."""
    if raw:
        return raw
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(c.lower() for c in plain if not unicodedata.category(c).startswith("M"))
    words, run = "", False
    for c in plain:
        blank = c in " \t\r\n"
        words += "" if blank and run else " " if blank else c
        run = blank
    return words if words == " " else words.strip(WHITE_SPACE).replace("\ue000", " ") or text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from(LETTERS + WHITE_SPACE), max_size=4), min_size=1, max_size=30, unique=True))
def test_random_vocabularies(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp() / "random_vocabulary"
    write(folder, words)
    expected = numbered([written_again(word, word if "\ufffd" in word else "") for word in words])
    assert classes(folder, len(words), max(expected) + 1) == expected


def test_ids_without_a_token_have_the_pads_class(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b", "c"])
    assert classes(tmp_path, 6, 3, pad=1) == [0, 1, 2, 1, 1, 1]


def test_ids_beyond_the_models_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b", "c"], ["<s>"])
    assert classes(tmp_path, 2, 2) == [0, 1]


def test_the_references_map(engine: Any, checkpoint: Path, oracle: Mapping[str, Any]) -> None:
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
