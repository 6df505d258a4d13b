"""draw, init, schema, doctor, clean, weights, check, build: one test or more each."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_gen.codegen import machine
from deepinfer_gen.specs.presets import hardware_tables, presets, shipped_specs

Cli = Callable[..., Any]
WriteSpec = Callable[..., str]


def test_draw_writes_an_svg_and_says_so(cli: Cli, tmp_path: Path) -> None:
    result = cli("draw", "tiny-cpu", "-o", tmp_path / "x.svg")
    assert (result.status, result.out, result.err) == (0, "", f"wrote {tmp_path / 'x.svg'}\n")
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_draw_of_a_folder_equals_draw_of_its_spec(cli: Cli, write_spec: WriteSpec, folder: Path) -> None:
    assert cli("draw", folder).out == cli("draw", write_spec()).out


@pytest.mark.parametrize(("encoding", "first"), [("utf-8", "┌"), ("latin-1", "+"), ("ascii", "+")])
def test_draw_suits_the_terminal(encoding: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer_gen.codegen.cli import main

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["draw", "tiny-cpu"]) == 0
    box = raw.getvalue().decode(encoding).splitlines()[1]
    assert (box[0], len(box)) == (first, 72)


@pytest.mark.parametrize("hardware", sorted(hardware_tables()))
@pytest.mark.parametrize("model", sorted(presets()))
def test_init_writes_a_spec_that_plans(cli: Cli, tmp_path: Path, model: str, hardware: str) -> None:
    path = tmp_path / "first-try.yaml"
    result = cli("init", path, "--model", model, "--hardware", hardware)
    assert (result.status, result.out, result.err) == (0, f"{path}\n", f"next: deepinfer-gen plan {path}\n")
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=")
    assert f"\nmodel: {model} " in text
    planned = cli("plan", path)
    if (model, hardware) == ("deepseek-v4.1-flash", "cpu"):
        assert "error[DI102]" in planned.err  # 509 GB do not fit 8 hosts of 16 GiB
    else:
        assert planned.status == 0, planned.err


@pytest.mark.parametrize("model", sorted(presets()))
def test_init_chooses_hardware_that_holds_the_model(cli: Cli, tmp_path: Path, model: str) -> None:
    path = tmp_path / "mine.yaml"
    assert cli("init", path, "--model", model).status == 0
    assert cli("plan", path).status == 0


def test_init_never_overwrites(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine\n")
    result = cli("init", path)
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        f"{path}: error[DI264]: exists already and is left as it is\n"
        "help: choose another file name, or remove it first\n"
    )
    assert path.read_text() == "mine\n"


def test_init_needs_a_name_that_is_one(cli: Cli, tmp_path: Path) -> None:
    result = cli("init", tmp_path / "My Engine.yaml")
    assert result.status == 2
    assert result.err.startswith("error[DI263]: 'My Engine' is no engine name: ")
    assert cli("init", tmp_path / "My Engine.yaml", "--name", "mine").status == 0
    assert "  name: mine " in (tmp_path / "My Engine.yaml").read_text()


def test_schema_is_the_shipped_file(cli: Cli) -> None:
    shipped = next(iter(shipped_specs().values())).parent / "schema.json"
    assert cli("schema").out == shipped.read_text()


def test_doctor_finds_what_this_machine_has(cli: Cli) -> None:
    result = cli("doctor", "--json")
    findings = {f["what"]: f for f in result.data}
    assert list(findings) == [
        "Python", "C++20 compiler", "Python headers", "pybind11", "torch", "build cache",
        "CUDA compiler", "NVIDIA GPU", "tilelang",
    ]  # fmt: skip
    assert [f["required"] for f in result.data] == [True] * 6 + [False] * 3
    assert findings["pybind11"]["ok"] is True
    assert result.status == (0 if all(f["ok"] for f in result.data if f["required"]) else 2)


def test_doctor_names_the_remedy(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(machine, "_headers", lambda: ("/nowhere/Python.h does not exist", False))
    result = cli("doctor")
    assert result.status == 2
    lines = result.out.splitlines()
    assert "MISSING  C++20 compiler  $CXX names 'no-such-compiler', which is not installed" in result.out
    at = next(i for i, line in enumerate(lines) if line.startswith("MISSING  build cache"))
    assert lines[at + 1] == "         help: set DEEPINFER_CACHE_DIR to a folder you may write"
    assert "-dev" in lines[next(i for i, line in enumerate(lines) if "Python headers" in line) + 1]
    assert lines[-1] == "3 required missing: C++20 compiler, Python headers, build cache"


@pytest.mark.parametrize(
    ("identity", "status", "found"),
    [
        ("g++ (Debian 10.2.1-6) 10.2.1 20210110 (x86_64-linux-gnu)", "true", "is older than version 12"),
        ("g++ (GCC) 13.2.0 (x86_64-linux-gnu)", "false", "does not compile C++20"),
        ("g++ (GCC) 13.2.0 (x86_64-linux-gnu)", "true", ""),
    ],
)
def test_the_compiler_must_be_new_enough(
    monkeypatch: pytest.MonkeyPatch, identity: str, status: str, found: str
) -> None:
    from deepinfer_gen.codegen import compiler

    monkeypatch.setattr(machine, "find_compiler", lambda: compiler.Compiler((status,), identity))
    text, ok = machine._compiler()
    assert (text, ok) == (f"{identity} {found}".rstrip(), not found)


def test_clean_lists_and_removes(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path))
    leftover = tmp_path / "work" / "0123.abc"
    leftover.mkdir(parents=True)
    (leftover / "engine.o").write_bytes(b"x" * 2048)
    listed = cli("clean", "--dry-run")
    assert listed.status == 0
    assert listed.out == f"leftover  0123.abc  2.00 KiB  {leftover}\n"
    assert listed.err == f"would remove 1 entries, 2.00 KiB, from {tmp_path}\n"
    assert leftover.exists()
    assert cli("clean").err == f"removed 1 entries, 2.00 KiB, from {tmp_path}\n"
    assert not leftover.exists()
    assert cli("clean").err == f"removed 0 entries, 0 B, from {tmp_path}\n"


def test_weights_of_the_released_model(cli: Cli) -> None:
    """95,819 tensors of the text model; the bytes are the sum over the checkpoint table, indexer.wk as [128, 512].

    By hand for one row: 40 layers x 384 experts = 15,360 of 2304 x 2560 B.
    """
    rows = [line.split() for line in cli("weights", "deepseek-v4.1-flash").out.splitlines()]
    assert ["layers.0–39.ffn.experts.0–383.w1.weight", "15,360", "I8", "[2304,", "2560]", "90,596,966,400", "B"] in rows
    assert ["layers.1,14.engram.q_weight", "2", "BF16", "[4,", "5120]", "81,920", "B"] in rows
    assert rows[-1][:4] == ["95,819", "tensors,", "509,315,486,040", "bytes"]


def test_weights_equal_the_shipped_checkpoint(cli: Cli) -> None:
    """Every tensor of the tiny model's safetensors headers, names, dtypes and shapes, and no other."""
    folder = presets()["tiny-v41"]
    present = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        present |= {k: (v["dtype"], v["shape"]) for k, v in header.items() if k != "__metadata__"}
    data = cli("weights", folder, "--json").data
    listed = data["tensors"]
    assert (data["count"], data["bytes"]) == (len(listed), sum(t["bytes"] for t in listed))
    assert {t["name"]: (t["dtype"], t["shape"]) for t in listed} == present
    assert cli("weights", folder / "config.json", "--json").data["count"] == len(present)
    assert len(cli("weights", folder, "--all").out.splitlines()) == len(present) + 1 + 7


def test_weights_of_nothing(cli: Cli, tmp_path: Path) -> None:
    result = cli("weights", "deepseek-v4.1-flesh")
    assert result.err == (
        "error[DI265]: 'deepseek-v4.1-flesh' is no model preset, file or folder\n"
        "help: did you mean 'deepseek-v4.1-flash'?\n"
    )
    assert cli("weights", tmp_path).err.startswith(f"{tmp_path}/config.json: error[DI001]: ")


def test_check_tells_drift(cli: Cli, write_spec: WriteSpec, folder: Path) -> None:
    spec = write_spec()
    same = cli("check", spec, "-o", folder.parent)
    assert (same.status, same.out, same.err) == (0, "", "checked 1 folder: no differences\n")
    (folder / "graphs.json").write_text("{}\n")
    result = cli("check", spec, "-o", folder.parent)
    assert result.status == 1
    assert result.out.startswith(f"{folder}/graphs.json: was changed by hand\n--- ")
    assert result.err == "checked 1 folder: 1 difference\n"
    drift = cli("check", spec, "-o", folder.parent, "--json").data["drift"]
    assert [(d["file"], d["reason"]) for d in drift] == [(f"{folder}/graphs.json", "was changed by hand")]


def test_check_reports_every_faulty_spec(cli: Cli, write_spec: WriteSpec) -> None:
    bad = [write_spec(f"{n}.yaml", ("nextn: 0", f"nextn: {n}")) for n in ("no", "-1")]
    result = cli("check", *bad, write_spec())
    assert (result.status, result.out) == (2, "")
    assert [line.split(": ")[0].split("/")[-1] for line in result.err.splitlines() if ": error[" in line] == [
        "no.yaml:11:10",
        "-1.yaml:11:10",
    ]


def test_generate_says_what_it_did(cli: Cli, write_spec: WriteSpec, tmp_path: Path) -> None:
    spec = write_spec()
    first = cli(spec, "-o", tmp_path / "out", "--no-build")
    assert (first.status, first.out) == (0, f"{tmp_path}/out/case\n")
    assert first.err.startswith("wrote ")
    second = cli(spec, "-o", tmp_path / "out", "--no-build")
    assert (second.out, second.err) == (f"{tmp_path}/out/case\n", "the folder is up to date\n")
    (tmp_path / "out" / "case" / "PLAN.md").write_text("mine")
    refused = cli(spec, "-o", tmp_path / "out", "--no-build")
    assert refused.status == 2
    assert "error[DI151]: PLAN.md was changed by hand" in refused.err
    assert cli(spec, "-o", tmp_path / "out", "--no-build", "--force").status == 0


def test_build_of_what_is_no_engine(cli: Cli, tmp_path: Path) -> None:
    result = cli("build", tmp_path)
    assert result.status == 2
    assert "error[DI200]: engine folder is not a generated engine folder: it has no manifest.json" in result.err


def test_flatten_shows_the_constants_of_the_spec(cli: Cli, write_spec: WriteSpec, folder: Path) -> None:
    result = cli("flatten", write_spec())
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("// The scheduler of one spec, flattened for reading.\n#include <")
    assert "kMaxNumSeqs = 16;" in result.out
    assert '#include "' not in result.out
    assert cli("flatten", folder).out == result.out


@pytest.mark.parametrize("spec", sorted(shipped_specs()))
def test_every_shipped_spec_flattens(cli: Cli, spec: str) -> None:
    """Also those whose policies are not built yet."""
    result = cli("flatten", spec)
    assert (result.status, result.err) == (0, "")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_flattened_source_compiles(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "flat.cpp").write_text(cli("flatten", "tiny-cpu").out)
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", tmp_path / "flat.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
