"""The record of a corpus: what each split held, so that another machine can tell whether its own is the same."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers
from corpus import SPLITS, SourceFile

MANIFEST = Path(__file__).with_name("manifest.json")


def corpus_manifest(files: Sequence[SourceFile], tokens: Mapping[str, int], pieces: str) -> dict[str, Any]:
    """Per split files, bytes, tokens and one SHA-256 over its (name, SHA-256) lines; each held-out file's SHA-256."""
    hashes = {file.name: sha256(file.data).hexdigest() for file in files}
    splits = {}
    for split in SPLITS:
        inside = [file for file in files if file.split == split]
        lines = "".join(f"{file.name} {hashes[file.name]}\n" for file in inside)
        splits[split] = {
            "files": len(inside),
            "bytes": sum(len(file.data) for file in inside),
            "tokens": tokens[split],
            "sha256": sha256(lines.encode()).hexdigest(),
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


def load_manifest() -> dict[str, Any]:
    """The committed record."""
    record: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return record
