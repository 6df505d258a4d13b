"""Random byte-level tokenizers whose number of Engram classes is known by construction."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tokenizers import pre_tokenizers

SPECIAL = ("<s>", "</s>", "<pad>")
# First bytes of longer characters: alone they have no text, so that the raw token is the key.
_PARTS = (0xC3, 0xE2, 0xF0)


@dataclass(frozen=True, slots=True)
class RandomTokenizer:
    """``content`` of a tokenizer.json, its number of tokens and of Engram classes; ``SPECIAL`` are ids 0, 1, 2."""

    content: dict[str, Any]
    tokens: int
    classes: int


def draw_tokenizer(rng: random.Random) -> RandomTokenizer:
    """A vocabulary of stems, each with variants that one class must hold: case, accents, spaces around, wide forms."""
    stems = sorted({"".join(rng.choices("abeinorstuz", k=rng.randint(2, 5))) for _ in range(rng.randint(20, 120))})
    texts = set(stems)
    for stem in stems:
        texts.update(rng.sample(_variants(stem), rng.randint(0, 3)))
    spaces = set(rng.sample([" ", "  ", "\t", "\r\n "], rng.randint(0, 3)))
    encoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoded = [encoder.pre_tokenize_str(text)[0][0] for text in sorted(texts | spaces)]
    # A byte's own sign is the character that stands for it; these three are printable in Latin-1.
    parts = [chr(byte) for byte in rng.sample(_PARTS, rng.randint(0, len(_PARTS)))]
    tokens = encoded + parts
    rng.shuffle(tokens)
    vocabulary = [*SPECIAL, *tokens]
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(id_, text) for id_, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id_ for id_, token in enumerate(vocabulary)},
            "merges": [],
        },
    }
    classes = len(SPECIAL) + len(stems) + len(parts) + bool(spaces)
    return RandomTokenizer(content, len(vocabulary), classes)


def _variants(stem: str) -> list[str]:
    wide = "".join(chr(ord(letter) - ord("a") + ord("ａ")) for letter in stem)
    accents = str.maketrans("aeiou", "áèîöû")
    return [stem.upper(), stem.capitalize(), stem.translate(accents), f" {stem}", f"{stem}\n", wide]


def _special(id_: int, text: str) -> dict[str, Any]:
    return {
        "id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": True,
    }  # fmt: skip
