"""``data``: the corpus of the running Python, the tokenizer, the token files and the held-out function heads."""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from byte_pairs import PIECES, VOCABULARY, token_ids, tokenizer_config, tokenizer_json, train_tokenizer
from compiled_tables import write_tables
from corpus import SPLITS, SourceFile, read_corpus
from heads import HEADS, choose_heads, heads_json
from library_files import STANDARD_LIBRARY
from licence import licence_text, notice
from manifest import MANIFEST, corpus_manifest
from places import PRESET, WORK
from tokenizers import Tokenizer

from deepinfer_gen.runtime.model.token_map import token_classes

_CLASSES = re.compile(r'("engram_compressed_vocab_size": )\d+')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folders that are read and written; the record and the heads go beside this tool."""
    parser.add_argument("--library", type=Path, default=STANDARD_LIBRARY, help="library of this Python version")
    parser.add_argument("--preset", type=Path, default=PRESET, help="folder with config.json; gets the tokenizer")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the token files")
    parser.add_argument("--records", type=Path, default=MANIFEST.parent, help="folder of manifest.json and heads.json")


def run(arguments: argparse.Namespace) -> None:
    """Write the files; the same bytes whenever the library is the same."""
    try:
        licence = licence_text(arguments.library)
    except FileNotFoundError as fault:
        raise SystemExit(str(fault)) from None
    files = read_corpus(arguments.library)
    texts = {split: [file.text for file in files if file.split == split] for split in SPLITS}
    pieces, tokenizer = best_tokenizer(texts["train"], texts["calibration"])
    tokens = {split: token_ids(tokenizer, texts[split]) for split in SPLITS}
    check_round_trip(tokenizer, files)

    _write_preset(arguments.preset, tokenizer, licence)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for split, ids in tokens.items():
        np.save(arguments.work / f"tokens-{split}.npy", ids)
    write_tables(arguments.preset, arguments.work)
    record = corpus_manifest(files, {split: len(ids) for split, ids in tokens.items()}, pieces)
    _write(arguments.records / MANIFEST.name, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    _write(arguments.records / HEADS.name, heads_json(choose_heads(files)))
    _print_table(files, tokens)


def best_tokenizer(train: Sequence[str], calibration: Sequence[str]) -> tuple[str, Tokenizer]:
    """The kind of pieces, and the tokenizer trained with them, that needs the fewest tokens on ``calibration``."""
    size = sum(len(text.encode()) for text in calibration)
    trained = {kind: train_tokenizer(train, kind) for kind in PIECES}
    counts = {kind: len(token_ids(tokenizer, calibration)) for kind, tokenizer in trained.items()}
    for kind, count in counts.items():
        print(f"pieces: {kind:20} {size / count:6.3f} bytes per token on calibration")
    best = min(counts, key=lambda kind: counts[kind])
    return best, trained[best]


def check_round_trip(tokenizer: Tokenizer, files: Sequence[SourceFile]) -> None:
    """Raise ``ValueError`` naming a text that its own ids do not give back."""
    encodings = tokenizer.encode_batch([file.text for file in files], add_special_tokens=False)
    decoded = tokenizer.decode_batch([encoding.ids for encoding in encodings], skip_special_tokens=False)
    for file, text in zip(files, decoded, strict=True):
        if text != file.text:
            raise ValueError(f"{file.name} is not what its tokens decode to")


def _write_preset(preset: Path, tokenizer: Tokenizer, licence: str) -> None:
    _write(preset / "tokenizer.json", tokenizer_json(tokenizer))
    _write(preset / "tokenizer_config.json", json.dumps(tokenizer_config(), indent=1) + "\n")
    _write(preset / "NOTICE", notice(platform.python_version()))
    _write(preset / "LICENSE.python", licence)
    classes = len(set(token_classes(Tokenizer.from_file(str(preset / "tokenizer.json")), VOCABULARY)))
    config = (preset / "config.json").read_text(encoding="utf-8")
    _write(preset / "config.json", _CLASSES.sub(rf"\g<1>{classes}", config))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _print_table(files: Sequence[SourceFile], tokens: dict[str, npt.NDArray[np.uint16]]) -> None:
    print(f"{'split':12}{'files':>7}{'bytes':>12}{'tokens':>11}{'bytes per token':>17}")
    for split, ids in tokens.items():
        sizes = [len(file.data) for file in files if file.split == split]
        print(f"{split:12}{len(sizes):7}{sum(sizes):12,}{len(ids):11,}{sum(sizes) / len(ids):17.3f}")
