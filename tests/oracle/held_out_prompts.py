"""Prompts that the shipped code model can continue and was not trained on: function heads, and beginnings of files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "train_tiny"))

from completions import BEFORE
from heads import load_heads
from library_files import STANDARD_LIBRARY, read_source
from manifest import load_manifest

from deepinfer_gen.runtime.tokenizer import Tokenizer

CONTEXTS = (600, 750, 900)
"""Tokens of the beginnings: more than the 64 entries that a layer selects, and than the 256 that candidates hold."""


def held_out_prompts(checkpoint: Path) -> list[list[int]]:
    """The committed heads, each behind a blank line, then one beginning for each of ``CONTEXTS``; ids without bos.

    Raises ``SystemExit`` under a Python whose library is not the one that the model was trained on.
    """
    tokenizer = Tokenizer(checkpoint)
    heads = [tokenizer.encode(BEFORE + head.head, add_special_tokens=False) for head in load_heads()]
    texts = (tokenizer.encode(text, add_special_tokens=False) for text in held_out_texts())
    beginnings = [next(ids for ids in texts if len(ids) > count)[:count] for count in CONTEXTS]
    return heads + beginnings


def held_out_texts() -> Iterator[str]:
    """Sources of the test split of the recorded corpus, in the order of the SHA-256 of their names."""
    record = load_manifest()
    names = [name for name in record["held_out"]["test"] if name.endswith(".py")]
    for name in sorted(names, key=lambda name: sha256(name.encode()).digest()):
        path = STANDARD_LIBRARY / name
        text = read_source(path) if path.is_file() else None
        if text is None or sha256(text.encode()).hexdigest() != record["held_out"]["test"][name]:
            raise SystemExit(
                f"{path} is not the held-out file of CPython {record['python']}; run this with that Python"
            )
        yield text
