"""What is measured must be what was held out, and a part of a report never replaces the whole."""

from __future__ import annotations

import argparse

import manifest
import pytest
import quality
from corpus import SPLITS, SourceFile
from manifest import recorded_corpus, split_digest

from deepinfer_gen.diagnostics import InputError

FILES = [SourceFile(f"{split}.py", f"a = '{split}'\n", split) for split in SPLITS]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    splits = {split: {"sha256": split_digest(FILES, split)} for split in SPLITS}
    found: dict[str, object] = {"python": "3.0.0", "splits": splits}
    monkeypatch.setattr(manifest, "load_manifest", lambda: found)
    return found


def test_the_recorded_files_are_taken(record: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "read_corpus", lambda: FILES)
    assert recorded_corpus() == FILES


@pytest.mark.parametrize("split", SPLITS)
def test_another_text_in_any_split_is_refused(
    split: str, record: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [SourceFile(f.name, f.text + "b = 1\n", f.split) if f.split == split else f for f in FILES]
    monkeypatch.setattr(manifest, "read_corpus", lambda: changed)
    with pytest.raises(InputError, match=rf"DI450.*the {split} split of Python .* is not that of 3\.0\.0"):
        recorded_corpus()


@pytest.mark.parametrize("part", [["--files", "3"], ["--parts", "drafts"]])
def test_a_part_does_not_replace_the_report(part: list[str]) -> None:
    parser = argparse.ArgumentParser()
    quality.add_arguments(parser)
    with pytest.raises(InputError, match="DI451"):
        quality.run(parser.parse_args(["--write", *part]))
