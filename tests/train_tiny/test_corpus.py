"""The division of the corpus into what is trained on and what is held out."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from corpus import read_corpus, split_by_name
from fake_library import make_library, words


def test_groups_fill_the_splits_in_the_order_of_their_hashes() -> None:
    documents = {f"module_{seed:03}.py": words(seed) for seed in range(100)}
    sides = split_by_name(documents)
    total = sum(len(text) for text in documents.values())
    expected = dict.fromkeys(documents, "train")
    left = {"test": 0.05 * total, "calibration": 0.03 * total}
    for name in sorted(documents, key=lambda name: sha256(name.encode()).hexdigest()):
        split = next((s for s in ("test", "calibration") if left[s] > 0), None)
        if split:
            expected[name] = split
            left[split] -= len(documents[name])
    assert sides == expected
    assert 5 <= list(sides.values()).count("test") <= 6
    assert 3 <= list(sides.values()).count("calibration") <= 4


def test_near_duplicates_are_on_the_side_of_their_first_name() -> None:
    """The copies sort behind, whatever their own hashes say."""
    documents = {f"module_{seed:03}.py": words(seed) for seed in range(100)}
    copies = {f"zcopy/{name}": text + "# a copy\n" for name, text in documents.items()}
    sides = split_by_name({**documents, **copies})
    assert {sides[f"zcopy/{name}"] == sides[name] for name in documents} == {True}
    assert set(sides.values()) == {"train", "calibration", "test"}


def test_codecs_are_trained_on_and_so_is_what_copies_one() -> None:
    documents = {f"encodings/codec_{seed:03}.py": words(seed) for seed in range(60)}
    documents |= {f"acopy_{seed:03}.py": words(seed) for seed in range(30)}
    documents |= {f"module_{seed:03}.py": words(seed) for seed in range(100, 140)}
    held = {name for name, side in split_by_name(documents).items() if side != "train"}
    assert held
    assert all(name.startswith("module_") for name in held)


def test_a_corpus_is_sorted_and_the_same_wherever_the_library_lies(tmp_path: Path) -> None:
    first, second = (read_corpus(make_library(tmp_path / place)) for place in ("here", "there/below"))
    assert first == second
    assert [file.name for file in first] == sorted(file.name for file in first)
    assert {file.name for file in first if file.name.endswith(".txt")} == {
        "pydoc_data/topics/alpha.txt",
        "pydoc_data/topics/beta.txt",
    }
    assert {file.split for file in first} == {"train", "calibration", "test"}
