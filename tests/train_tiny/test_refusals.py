"""Input that the trainings cannot use is refused in a sentence, with its place and what to do about it."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafter import Drafter
from miniature import LENGTH, write_miniature
from network import Backbone
from rows import Rows
from saved import save
from sizes import read_sizes
from tables import read_tables
from usage_rows import UsageRows

from deepinfer_gen.diagnostics import Diagnostic, InputError

TOOL = Path(__file__).resolve().parents[2] / "tools" / "train_tiny"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a working folder after ``data``, with checkpoints of all commands."""
    folder = tmp_path_factory.mktemp("miniature")
    model, work = write_miniature(folder)
    sizes, tables = read_sizes(model / "config.json"), read_tables(work)
    backbone = Backbone(sizes, tables.token_map, tables.hashes)
    for name in ("backbone", "polished"):
        save(work / name, [backbone], 5)
    save(work / "drafted", [backbone, Drafter(sizes)], 5)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(written, tmp_path / "copy")


def refused(folder: Path, command: str, *options: str) -> Diagnostic:
    """What a command run in this process says; it must not have begun to train."""
    module = import_module(command)
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    flags = ["--work", str(folder / "work"), "--config", str(folder / "model" / "config.json"), "--length", str(LENGTH)]
    if command == "draft":
        flags += ["--anchors", "8"]
    with pytest.raises(InputError) as caught:
        module.run(parser.parse_args([*flags, "--batch", "8", *options]))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help
    assert not list((folder / "work").glob("*-curve.jsonl"))
    return diagnostic


COMMANDS = ("train", "polish", "draft")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["tokens-train.npy", "tokens-calibration.npy", "tables.safetensors"])
def test_what_data_writes(folder: Path, command: str, name: str) -> None:
    """Missing, empty, cut."""
    path = folder / "work" / name
    whole = path.read_bytes()
    for spoil in (path.unlink, lambda: path.write_bytes(b""), lambda: path.write_bytes(whole[: len(whole) // 2])):
        spoil()
        found = refused(folder, command)
        assert (found.code, found.file) == ("DI442", str(path))
        assert found.help == "run `python tools/train_tiny data` first"
        assert str(path) not in found.message


@pytest.mark.parametrize(
    ("command", "options", "checkpoint", "remedy"),
    [
        ("train", ["--start", "5"], "backbone", "train"),
        ("polish", [], "backbone", "train"),
        ("polish", ["--start", "5"], "polished", "polish"),
        ("draft", [], "polished", "polish"),
        ("draft", ["--start", "5"], "drafted", "draft"),
    ],
)
def test_the_checkpoint_of_the_command_before(
    folder: Path, command: str, options: list[str], checkpoint: str, remedy: str
) -> None:
    """Missing, cut, with a parameter of another shape; what the command does not read does not matter."""
    place = folder / "work" / checkpoint
    others = {"backbone", "polished", "drafted"} - {checkpoint} - ({"polished"} if command == "draft" else set())
    for other in others:
        shutil.rmtree(folder / "work" / other)
    file = place / "weights-0.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert refused(folder, command, *options).code == "DI444"
    file.unlink()
    found = refused(folder, command, *options)
    assert (found.code, found.file, found.help) == (
        "DI444",
        str(place),
        f"run `python tools/train_tiny {remedy}` first",
    )
    file.write_bytes(whole)
    respell(folder, "hc_mult", 3)
    found = refused(folder, command, *options)
    assert found.code == "DI445"
    assert "[8, 128] in the training checkpoint, [15, 192] in the model" in found.message  # hc_attn_fn


def respell(folder: Path, name: str, value: Any) -> None:
    path = folder / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["text_config"][name] = value
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("length", [65, 40, 8, 4096 + 16])
def test_lengths(folder: Path, command: str, length: int) -> None:
    """The miniature's rows are multiples of 16, its window, up to its 4,096 positions."""
    found = refused(folder, command, "--length", str(length))
    assert found.code == "DI446"
    assert f"--length {length} is no multiple of 16 up to 4096" in found.message
    assert found.help == f"--length {max(16, min(length, 4096) // 16 * 16)}"


def test_lengths_that_candidate_blocks_need(folder: Path) -> None:
    """Entries of two tokens in blocks of 16 make multiples of 32."""
    respell(folder, "compress_ratios", [0, 2, 2, 2, 2, 2, 0, 0])
    respell(folder, "candidate_block_size", 16)
    found = refused(folder, "train", "--length", "48")
    assert found.code == "DI446"
    assert "no multiple of 32" in found.message
    assert "candidate blocks of 32" in found.message


@pytest.mark.parametrize("command", COMMANDS)
def test_a_start_that_leaves_no_step(folder: Path, command: str) -> None:
    found = refused(folder, command, "--start", "7", "--steps", "7")
    assert (found.code, found.message) == ("DI447", "--start 7 leaves no step before --steps 7")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_start_that_is_not_the_checkpoint_s(folder: Path, command: str) -> None:
    found = refused(folder, command, "--start", "4", "--steps", "9")
    assert (found.code, found.message) == ("DI447", "--start 4, but the checkpoint was saved after step 5")
    assert found.help == "--start 5"


@pytest.mark.parametrize("text", ["", "{", '{"text_config": {}}', '{"no": 1}'])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    path = folder / "model" / "config.json"
    path.write_text(text, encoding="utf-8")
    assert refused(folder, "train").code == "DI442"
    path.unlink()
    found = refused(folder, "train")
    assert (found.code, found.file) == ("DI442", str(path))


def test_rows_that_cannot_be_made(folder: Path) -> None:
    """More anchors than places, a polish without loops, too little text for a step, none of the wanted kind."""
    found = refused(folder, "draft", "--anchors", "59")
    assert found.code == "DI448"
    assert "--anchors 59 exceeds the 58 places" in found.message
    assert refused(folder, "polish", "--batch", "3").code == "DI448"
    assert refused(folder, "train", "--batch", "5000").code == "DI443"
    np.save(folder / "work" / "tokens-calibration.npy", np.zeros(LENGTH * 8, dtype=np.uint16))
    assert refused(folder, "train").code == "DI443"
    with pytest.raises(InputError, match=r"DI443.*127 tokens do not fill a step of 1 rows of 64"):
        Rows(np.zeros(127, dtype=np.uint16), LENGTH, 1, seed=0)
    tables = read_tables(folder / "work")
    blank = Rows(np.full(2000, 50, dtype=np.uint16), LENGTH, 4, seed=0)
    with pytest.raises(InputError, match="DI443"):
        UsageRows(blank, tables)


@pytest.mark.parametrize("option", ["--steps", "--batch", "--length", "--evaluate-every", "--held-out", "--start"])
def test_numbers_below_the_least(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    import_module("train").add_arguments(parser)
    least = 0 if option == "--start" else 1
    parser.parse_args([option, str(least)])
    with pytest.raises(SystemExit):
        parser.parse_args([option, str(least - 1)])
    assert f"{least - 1} is less than {least}" in capsys.readouterr().err


def test_the_command_shows_it_without_a_traceback(tmp_path: Path) -> None:
    """And trains on what is importable without compiler, tokenizer or engine."""
    script = f"""
import sys, atexit, runpy
sys.path.insert(0, {str(TOOL)!r})
import train, polish, draft
atexit.register(lambda: print(sorted(m for m in sys.modules if m.startswith(("deepinfer", "tokenizers")))))
sys.argv = ["train_tiny", "train", "--work", {str(tmp_path)!r}]
runpy.run_path({str(TOOL)!r}, run_name="__main__")
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert f"{tmp_path}/tables.safetensors: error[DI442]" in found.stderr
    assert found.stdout.strip() == str(["deepinfer_gen", "deepinfer_gen.diagnostics"])
