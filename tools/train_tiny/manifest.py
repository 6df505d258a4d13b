"""The record of a corpus: what each split held, so that another machine can tell whether its own is the same."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers
from corpus import SPLITS, SourceFile, read_corpus

from deepinfer_gen.diagnostics import Diagnostic, InputError

MANIFEST = Path(__file__).with_name("manifest.json")


def corpus_manifest(files: Sequence[SourceFile], tokens: Mapping[str, int], pieces: str) -> dict[str, Any]:
    """Per split files, bytes, tokens and one SHA-256 over its (name, SHA-256) lines; each held-out file's SHA-256."""
    hashes = {file.name: sha256(file.data).hexdigest() for file in files}
    splits = {}
    for split in SPLITS:
        inside = [file for file in files if file.split == split]
        splits[split] = {
            "files": len(inside),
            "bytes": sum(len(file.data) for file in inside),
            "tokens": tokens[split],
            "sha256": split_digest(inside, split),
        }
    return {
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        "pieces": pieces,
        "splits": splits,
        "held_out": {
            split: {file.name: hashes[file.name] for file in files if file.split == split}
            for split in SPLITS
            if split != "train"
        },
    }


def recorded_corpus() -> list[SourceFile]:
    """The corpus of the running Python, which must be the recorded one: another would be measured on what was read.

    Raises ``InputError`` (DI450) where a split differs.
    """
    files, record = read_corpus(), load_manifest()
    for split in SPLITS:
        if split_digest(files, split) != record["splits"][split]["sha256"]:
            message = f"the {split} split of Python {platform.python_version()} is not that of {record['python']}"
            remedy = f"run this with Python {record['python']}, whose library the model was trained and held out on"
            raise InputError(Diagnostic("DI450", message, file=str(MANIFEST), help=remedy))
    return files


def split_digest(files: Sequence[SourceFile], split: str) -> str:
    """SHA-256 over the (name, SHA-256) lines of a split."""
    lines = (f"{file.name} {sha256(file.data).hexdigest()}\n" for file in files if file.split == split)
    return sha256("".join(lines).encode()).hexdigest()


def load_manifest() -> dict[str, Any]:
    """The committed record."""
    record: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return record
