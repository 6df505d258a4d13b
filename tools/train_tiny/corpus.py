"""The texts of the running Python that the small model learns from and is measured on, divided by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from library_files import STANDARD_LIBRARY, read_documents
from near_duplicates import clusters

SPLITS = ("train", "calibration", "test")
# Shares of the bytes that training never sees, in the order in which they are filled.
_HELD_OUT = {"test": 0.05, "calibration": 0.03}
# Codecs are written from a few templates, whatever their texts share.
_TRAIN_ONLY = "encodings/"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text of the library. ``name`` is its posix path below the library, ``split`` one of ``SPLITS``."""

    name: str
    text: str
    split: str

    @property
    def data(self) -> bytes:
        """The text as the tokenizer sees it: UTF-8 with ``\\n`` newlines."""
        return self.text.encode()


def read_corpus(library: Path = STANDARD_LIBRARY) -> list[SourceFile]:
    """All texts of ``library`` (see ``library_files``), sorted by name; the same on every machine of one Python."""
    documents = read_documents(library)
    sides = split_by_name(documents)
    return [SourceFile(name, text, sides[name]) for name, text in documents.items()]


def split_by_name(documents: Mapping[str, str]) -> dict[str, str]:
    """Split of each document.

    Groups of near duplicates stay together. In the order of the SHA-256 of their first names they fill ``test`` until
    it has 5 % of all bytes, then ``calibration`` until it has 3 %; the others are ``train``, and so is every codec.
    """
    groups = sorted(clusters(documents), key=lambda names: sha256(names[0].encode()).digest())
    sizes = {name: len(text.encode()) for name, text in documents.items()}
    total = sum(sizes.values())
    sides = dict.fromkeys(documents, "train")
    candidates = [names for names in groups if not any(name.startswith(_TRAIN_ONLY) for name in names)]
    for split, share in _HELD_OUT.items():
        filled = 0
        while candidates and filled < share * total:
            names = candidates.pop(0)
            sides.update(dict.fromkeys(names, split))
            filled += sum(sizes[name] for name in names)
    return sides
