"""The commands over the shipped random checkpoint and a corpus of its own words."""

from __future__ import annotations

import argparse
import json
import random
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import calibrate
import completions
import pytest
import quality
from checkpoint_model import CheckpointModel
from corpus import SourceFile
from function_body import End
from heads import Head
from ngram import NgramModel

from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

BODY = "\n    total = 0\n    for value in values:\n        total += value\n    return total\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with the other files that a release has beside its weights."""
    copy = tmp_path / "a-release"
    shutil.copytree(preset_folder("tiny-v41"), copy)
    for name in ("LICENSE", "NOTICE", "LICENSE.python"):
        (copy / name).write_text("terms")
    return copy


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"{rng.choice('wW')}{int(rng.expovariate(0.1)) % 200}" for _ in range(count))


def corpus() -> list[SourceFile]:
    sizes = {"train": 400, "calibration": 300, "test": 150}
    return [
        SourceFile(f"{split}{i}.py", words(size + 10 * i, i), split) for split, size in sizes.items() for i in range(3)
    ]


def parsed(module: object, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args(arguments)


def test_calibrate_then_quality(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The temperatures file joins the checkpoint, which loads as before."""
    for module in (calibrate, quality):
        monkeypatch.setattr(module, "recorded_corpus", corpus)
    monkeypatch.setattr(
        quality, "load_heads", lambda: [Head("test0.py", "f", "w1 w2 w3:"), Head("test1.py", "g", "w5:")]
    )
    monkeypatch.setattr(completions, "text_before", lambda text, head: text)
    monkeypatch.setattr(quality, "REPORT", tmp_path / "report.md")
    monkeypatch.setattr(completions, "LIMIT", 12)
    few = ("--checkpoint", str(folder), "--prompts", "4", "--tokens", "12", "--rows", "4")
    calibrate.run(parsed(calibrate, *few))
    written = json.loads((folder / "confidence_temperatures.json").read_text())
    assert written["nextn"] == len(written["temperatures"]) == 5
    assert "4 prompts of the calibration split" in written["fitted_on"]

    capsys.readouterr()
    quality.run(parsed(quality, *few, "--show", "--write"))
    printed = capsys.readouterr().out
    assert (tmp_path / "report.md").read_text().strip() == printed.strip()
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|")]
    bits, completed = (row[1:] for row in rows if row[0] == "a-release")
    assert (bits[0], float(bits[1]) > 0) == ("its training", True)
    assert completed[:2] == ["0", "0"], "what it says does not parse"
    assert "| a-release, behind 512 tokens of the file | 0 | 0 | 2 |" in printed
    for figure in ("5-gram model", "xz -9e", "zlib -9"):
        assert figure in printed
    assert ", ".join(f"{t:.3f}" for t in written["temperatures"]) in [row[0] for row in rows]
    assert printed.count("```python") == 6


def test_parts_are_chosen_and_the_sample_is_the_first_by_hash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quality, "recorded_corpus", corpus)
    quality.run(parsed(quality, "--checkpoint", str(folder), "--parts", "bits", "--files", "1"))
    printed = capsys.readouterr().out
    first = min(
        (file for file in corpus() if file.split == "test"), key=lambda file: sha256(file.name.encode()).digest()
    )
    assert f"1 of 3 test files ({len(first.data):,} bytes, {len(first.text.split()):,} tokens)" in printed
    assert "Drafts" not in printed


def test_a_text_that_its_tokens_lose_has_no_bits(checkpoint: CheckpointModel) -> None:
    subject = quality.Subject(checkpoint, [SourceFile("a.py", "w1  w2", "test")])
    with pytest.raises(ValueError, match=r"a\.py is not what its tokens decode to"):
        _ = subject.test_ids


def test_completions_are_cut_and_judged(checkpoint: CheckpointModel) -> None:
    """An n-gram model that knows one function by heart says it again; a head that it does not know ends nowhere."""
    code = replace(checkpoint, tokenizer=Tokenizer(preset_folder("tiny-v41-code")))
    text = f"def add(values):{BODY}\n\ndef other():\n    pass\n"
    ngram = NgramModel([code.encode(text)], vocab_size=2048, bos=code.bos, eos=code.eos)
    known, last = Head("a.py", "add", "def add(values):"), Head("b.py", "other", "def other():")
    found, short = completions.ngram_completions(code, ngram, [known, last])
    assert (found.body, found.end) == (BODY, End.DEDENT)
    assert found.statements is not None
    assert (found.statements.nested, found.statements.top, found.is_enough) == (4, 3, True)
    assert (short.body, short.end, short.is_enough) == ("\n    pass\n", End.EOS, False)


def test_the_command_line_names_what_is_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(quality, "--checkpoint", "nowhere")
    assert "neither a preset nor a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parsed(quality, "--rows", "0")
