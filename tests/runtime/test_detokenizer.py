"""Incremental text equals the text of all ids at once, for tokenizers of every kind; characters come whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deepinfer_gen.runtime.detokenizer import UNFINISHED, IncrementalDetokenizer
from deepinfer_gen.runtime.request_text import RequestText

Decode = Callable[[Sequence[int]], str]


def byte_level() -> Decode:
    """Single bytes and a few merges; any sequence of ids is possible, valid UTF-8 or not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    order = [ord_of(token) for token in alphabet]
    id_of_byte = {byte: i for i, byte in enumerate(order)}
    return lambda ids: tokenizer.decode([id_of_byte[i % 256] for i in ids])


def ord_of(token: str) -> int:
    """The byte that a byte-level token stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    value = ord(token)
    return value if value < 256 else others[value - 256]


def word_level() -> Decode:
    """No decoder: words joined by spaces; id 0 is special and has no text."""
    tokenizer = Tokenizer(models.WordLevel({"<bos>": 0, **{f"w{i}": i for i in range(1, 256)}}, unk_token="<bos>"))
    return lambda ids: tokenizer.decode([i for i in ids if i])


def metaspace() -> Decode:
    """A decoder that strips the space in front of the first word."""
    tokenizer = Tokenizer(
        models.WordLevel({f"\u2581w{i}" if i % 2 else f"x{i}": i for i in range(256)}, unk_token="x0")
    )
    tokenizer.decoder = decoders.Metaspace()
    return lambda ids: tokenizer.decode(list(ids))


DECODERS = {"byte_level": byte_level(), "word_level": word_level(), "metaspace": metaspace()}
IDS = st.lists(st.integers(0, 255), max_size=40)


@pytest.mark.parametrize("kind", sorted(DECODERS))
@given(ids=IDS, cuts=st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_pieces_make_the_whole(kind: str, ids: list[int], cuts: list[int]) -> None:
    decode = DECODERS[kind]
    detokenizer = IncrementalDetokenizer(decode, [])
    text, rest = "", list(ids)
    for cut in cuts * (len(ids) + 1):
        if not rest:
            break
        text += detokenizer.append(rest[:cut])
        rest = rest[cut:]
    assert text + detokenizer.flush() == decode(ids)


@given(text=st.text(max_size=20), prompt=st.text(max_size=8))
def test_characters_come_whole(text: str, prompt: str) -> None:
    decode = DECODERS["byte_level"]
    detokenizer = IncrementalDetokenizer(decode, list(prompt.encode()))
    for byte in text.encode():
        piece = detokenizer.append([byte])
        assert UNFINISHED not in piece or UNFINISHED in text


@given(prompt=st.lists(st.integers(1, 255), min_size=1, max_size=20), ids=st.lists(st.integers(0, 255), max_size=20))
def test_the_prompt_decides_the_first_space(prompt: list[int], ids: list[int]) -> None:
    for kind in ("word_level", "metaspace"):
        decode = DECODERS[kind]
        detokenizer = IncrementalDetokenizer(decode, prompt)
        pieces = "".join(detokenizer.append([i]) for i in ids) + detokenizer.flush()
        assert decode(prompt) + pieces == decode([*prompt, *ids])


def test_special_ids_at_the_end_of_a_prompt_do_not_hide_the_space() -> None:
    detokenizer = IncrementalDetokenizer(DECODERS["word_level"], [3, *[0] * 9])
    assert detokenizer.append([4]) == " w4"


@given(ids=IDS, stops=st.lists(st.sampled_from(["w1", " w2", "w3 w", "5"]), max_size=2), include=st.booleans())
def test_text_with_stop_strings_is_cut_where_the_whole_text_is(ids: list[int], stops: list[str], include: bool) -> None:
    decode = DECODERS["word_level"]
    text = RequestText(IncrementalDetokenizer(decode, []), stops, include_stop=include)
    shown = ""
    stop = None
    for i in ids:
        stop = text.append(i, stoppable=True)
        if stop is not None:
            break
        assert text.read(final=False).startswith(shown)
        shown = text.read(final=False)
    whole = decode(ids)
    ends = [(whole.find(s) + len(s), s) for s in stops if s in whole]
    if not ends:
        assert stop is None
        assert text.read(final=True) == whole
        return
    end = min(ends, key=lambda e: (e[0], stops.index(e[1])))
    assert stop == end[1]
    assert text.read(final=True) == whole[: end[0] if include else end[0] - len(end[1])]
    assert text.read(final=True).startswith(shown)
