"""The file that ``data`` leaves for machines without compiler and tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_tables import write_tables
from engram import table_rows
from tables import Tables, read_tables

from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    work = tmp_path_factory.mktemp("work")
    write_tables(preset_folder("tiny-v41-code"), work)
    return read_tables(work)


def test_kinds_of_tokens_are_those_of_their_text(tables: Tables) -> None:
    """By the text of each id; some of every kind exist."""
    tokenizer = Tokenizer(preset_folder("tiny-v41-code"))
    heads = set()
    for token in range(len(tables.token_map)):
        text = tokenizer.decode([token])
        assert bool(tables.begins_line[token]) == (text[:1] == "\n")
        assert bool(tables.is_break[token]) == (text != "" and set(text) == {"\n"})
        if tables.is_head[token]:
            heads.add(text)
    assert {text.strip() for text in heads} <= {"def", "class", "async"}
    assert {"def", "class"} <= heads
    assert tables.is_break.any()


def test_hashes_by_hand(tables: Tables) -> None:
    """Orders 2 to 4 of the classes, mixed by xor of products, each modulo its own prime behind the rows before it."""
    classes = torch.tensor([[5, 0, 1562, 77, 5, 0]])
    pad = torch.tensor([[9]])
    assert set(tables.hashes) == {1, 3}
    for hashes in tables.hashes.values():
        found = table_rows(classes, pad, hashes)
        multipliers = hashes.multipliers.tolist()
        first = 0
        offsets = []
        for prime in hashes.primes.flatten().tolist():
            offsets.append(first)
            first += prime
        assert hashes.offsets.flatten().tolist() == offsets
        row = [9, 9, 9, *classes[0].tolist()]
        for place in range(6):
            expected = []
            mixed = row[place + 3] * multipliers[0]
            for back in (1, 2, 3):
                mixed = _signed(mixed ^ (row[place + 3 - back] * multipliers[back]))
                primes = hashes.primes[back - 1].tolist()
                begins = hashes.offsets[back - 1].tolist()
                expected += [mixed % prime + begin for prime, begin in zip(primes, begins, strict=True)]
            assert found[0, place].tolist() == expected


def _signed(number: int) -> int:
    """As an int64 holds it."""
    return (number + 2**63) % 2**64 - 2**63


def test_the_file_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_tables(preset_folder("tiny-v41-code"), tmp_path / name)
    first, second = (next((tmp_path / name).iterdir()).read_bytes() for name in ("a", "b"))
    assert first == second
