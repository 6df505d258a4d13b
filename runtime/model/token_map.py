"""The Engram's reduced vocabulary: ids whose texts normalise alike share one class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.model.constants import Constants

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Stands for a token that is exactly one space, which stripping would make empty.
_SPACE_SENTINEL = "\ue000"
_REPLACEMENT = "\ufffd"


def engram_token_map(folder: Path, constants: Constants) -> list[int]:
    """Class of every id of the vocabulary, from the checkpoint's ``tokenizer.json``; classes are numbered in id order.

    Ids that the tokenizer does not define share the pad token's class. The number of classes enters every hash, so
    another number than the plan's is an ``InputError``, and so is a pad token that the tokenizer does not define.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            Diagnostic(
                "DI344", f"the checkpoint has no tokenizer.json in '{folder}'", help="copy the model's tokenizer"
            )
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises plain Exception for every fault of the file
        raise InputError(Diagnostic("DI344", f"tokenizer.json cannot be read: {error}", file=path.name)) from error
    mapped = token_classes(tokenizer, constants.vocab_size)
    count = max(mapped, default=-1) + 1
    if count != constants.engram_compressed_vocab_size:
        raise InputError(
            Diagnostic(
                "DI345",
                f"tokenizer.json gives {count} Engram token classes, the engine's model has"
                f" {constants.engram_compressed_vocab_size}",
                file=path.name,
                help="use the tokenizer.json that belongs to this checkpoint",
            )
        )
    pad = constants.engram_pad_token_id
    if pad >= len(mapped):
        raise InputError(
            Diagnostic(
                "DI345",
                f"tokenizer.json defines {len(mapped)} tokens, and the engine's engram_pad_token_id is {pad}",
                file=path.name,
                help="use the tokenizer.json that belongs to this checkpoint",
            )
        )
    return mapped + [mapped[pad]] * (constants.vocab_size - len(mapped))


def token_classes(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Class of every id below ``vocab_size`` that ``tokenizer`` defines."""
    from tokenizers import Regex, normalizers

    normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _SPACE_SENTINEL),
            normalizers.Strip(),
            normalizers.Replace(_SPACE_SENTINEL, " "),
        ]
    )
    classes: dict[str, int] = {}
    mapped: list[int] = []
    for token in range(min(tokenizer.get_vocab_size(with_added_tokens=True), vocab_size)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        # A token that is part of a character has no text of its own: its raw form keys it.
        raw = tokenizer.id_to_token(token) if _REPLACEMENT in text else None
        key = raw or normalizer.normalize_str(text) or text
        mapped.append(classes.setdefault(key, len(classes)))
    return mapped
