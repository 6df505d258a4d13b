"""The tokenizer: byte-level byte pairs of 2,048 entries, trained on the ``train`` split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
# In the order of their ids; the model's configuration names them by id.
SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>", "<noise>", "<image>")

# A line's end and the next line's indentation are one piece, and so is the indentation that a prompt begins with.
# Nothing else reaches over a newline, so that a text cut at a line's end has the tokens of the whole text.
_LINES = r"\A[ \t]+|(?:\r?\n)+[ \t]*"
_SPACES = r"[ \t]+(?!\S)|\s"
# What else one piece may be; the trainer joins bytes within a piece only.
PIECES = {
    "words": r" ?_*\p{L}+| ?\p{N}{1,3}| ?(?:[^\s\p{L}\p{N}_]|_(?!_*\p{L}))+",
    "identifiers": r" ?[\p{L}_]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}_]+",
    "words after a mark": r"[^\r\n\p{L}\p{N}]?_*\p{L}+|[^\r\n\p{L}\p{N}]?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+",
}


def train_tokenizer(texts: Iterable[str], pieces: str) -> Tokenizer:
    """A tokenizer whose pairs are the most frequent ones of ``texts`` within pieces of the kind ``pieces``."""
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex("|".join((_LINES, PIECES[pieces], _SPACES)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # A source that spells a special token has the letters, not the token.
    tokenizer.encode_special_tokens = True
    return tokenizer


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> npt.NDArray[np.uint16]:
    """Ids of the texts one after another, each between ``<bos>`` and ``<eos>``."""
    bos, eos = SPECIAL_TOKENS.index("<bos>"), SPECIAL_TOKENS.index("<eos>")
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        ids += [bos, *encoding.ids, eos]
    return np.array(ids, np.uint16)


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """``tokenizer.json`` without its spaces, a pair as one string: the library reads this short form too."""
    content = json.loads(tokenizer.to_str())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"


def tokenizer_config() -> dict[str, str | bool]:
    """``tokenizer_config.json``. No ``<bos>`` is added: a prompt is usually the middle of a file."""
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=False))
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names, "add_bos_token": False}
