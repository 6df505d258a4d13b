"""``python tools/train_tiny data``: on a small made-up library, and on the running Python's."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from corpus import read_corpus
from fake_library import make_library
from heads import HEADS
from manifest import MANIFEST, load_manifest

from deepinfer_gen.runtime.model.token_map import token_classes
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

TOOL = Path(__file__).resolve().parents[2] / "tools" / "train_tiny"
SPLITS = ("train", "calibration", "test")


def run_data(out: Path, *options: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    """The command with everything it writes below ``out``, as another process with another hash seed."""
    preset = out / "preset"
    preset.mkdir(parents=True)
    shipped = (preset_folder("tiny-v41-code") / "config.json").read_text(encoding="utf-8")
    placeholder = re.sub(r'("engram_compressed_vocab_size"): [0-9]+', r"\1: 9", shipped)
    (preset / "config.json").write_text(placeholder, encoding="utf-8")
    folders = ["--preset", str(preset), "--work", str(out / "work"), "--records", str(out / "records")]
    command = [sys.executable, str(TOOL), "data", *folders, *options]
    environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": str(int(seed) + 1)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def written(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_two_runs_write_the_same_bytes_and_they_are_those_of_the_corpus(tmp_path: Path) -> None:
    library = make_library(tmp_path / "lib")
    outs = [tmp_path / "first", tmp_path / "second"]
    runs = [run_data(out, "--library", str(library), seed=str(i)) for i, out in enumerate(outs)]
    assert [run.stderr for run in runs] == ["", ""]
    files = written(outs[0])
    assert files == written(outs[1])
    assert sorted(files) == [
        "preset/LICENSE.python",
        "preset/NOTICE",
        "preset/config.json",
        "preset/tokenizer.json",
        "preset/tokenizer_config.json",
        "records/heads.json",
        "records/manifest.json",
        "work/tables.safetensors",
        "work/tokens-calibration.npy",
        "work/tokens-test.npy",
        "work/tokens-train.npy",
    ]
    corpus = read_corpus(library)
    tokenizer = Tokenizer(outs[0] / "preset")
    trained = tokenizers.Tokenizer.from_file(str(outs[0] / "preset" / "tokenizer.json"))
    classes = len(set(token_classes(trained, trained.get_vocab_size())))
    assert json.loads(files["preset/config.json"])["text_config"]["engram_compressed_vocab_size"] == classes
    record = json.loads(files["records/manifest.json"])
    table = {line.split()[0]: line.split()[1:] for line in runs[0].stdout.splitlines()[-3:]}
    for split in SPLITS:
        inside = [file for file in corpus if file.split == split]
        ids = np.load(outs[0] / "work" / f"tokens-{split}.npy")
        texts = [f"<bos>{file.text}<eos>" for file in inside]
        assert tokenizer.decode(ids.tolist()) == "".join(texts)
        lines = "".join(f"{file.name} {sha256(file.text.encode()).hexdigest()}\n" for file in inside)
        size = sum(len(file.text.encode()) for file in inside)
        assert record["splits"][split] == {
            "files": len(inside),
            "bytes": size,
            "tokens": len(ids),
            "sha256": sha256(lines.encode()).hexdigest(),
        }
        assert table[split] == [str(len(inside)), f"{size:,}", f"{len(ids):,}", f"{size / len(ids):.3f}"]
    held = {file.name for file in corpus if file.split != "train"}
    assert set(record["held_out"]["test"]) | set(record["held_out"]["calibration"]) == held


@pytest.mark.long
def test_the_licence_travels_and_a_library_without_one_is_refused(tmp_path: Path) -> None:
    library = make_library(tmp_path / "lib", modules=40)
    assert run_data(tmp_path / "with", "--library", str(library)).returncode == 0
    preset = tmp_path / "with" / "preset"
    assert (preset / "LICENSE.python").read_text(encoding="utf-8") == "The licence.\n"
    assert f"CPython {platform.python_version()}" in (preset / "NOTICE").read_text(encoding="utf-8")
    (library / "LICENSE.txt").unlink()
    refused = run_data(tmp_path / "without", "--library", str(library))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith("run this with a Python that carries its licence")
    assert list(written(tmp_path / "without")) == ["preset/config.json"]


def test_shipped_attribution_names_the_python_of_the_manifest() -> None:
    preset = preset_folder("tiny-v41-code")
    attribution = (preset / "NOTICE").read_text(encoding="utf-8")
    assert f"CPython {load_manifest()['python']}" in attribution
    assert "Python Software Foundation; All Rights Reserved" in attribution
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (preset / "LICENSE.python").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_running_python_gives_what_is_committed(tmp_path: Path) -> None:
    record = load_manifest()
    if (record["python"], record["tokenizers"]) != (platform.python_version(), tokenizers.__version__):
        pytest.skip(f"the data are those of Python {record['python']} and tokenizers {record['tokenizers']}")
    assert run_data(tmp_path).stderr == ""
    for path in (MANIFEST, HEADS):
        assert (tmp_path / "records" / path.name).read_bytes() == path.read_bytes()
    for path in (tmp_path / "preset").iterdir():
        assert path.read_bytes() == (preset_folder("tiny-v41-code") / path.name).read_bytes(), path.name
