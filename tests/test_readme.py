"""What the README shows is what a user sees."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BAD_SPEC = """\
engine:
  name: bad
model: deepseek-v4.1-flash
hardware: sm100
parallel:
  dpp: 8
limits:
  max_num_seqs: 128
  max_model_len: 1:30
speculative:
  nextn: 7
"""


def sessions() -> list[tuple[str, str]]:
    """Every command of the console blocks with the output shown below it."""
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    parts = [part.split("\n", 1) for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(command, output) for command, output in parts]


@pytest.mark.parametrize(("command", "output"), sessions(), ids=lambda text: text[:40])
def test_console_blocks_show_the_real_output(command: str, output: str, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "deepinfer-gen"
    (tmp_path / "bad.yaml").write_text(BAD_SPEC)
    for folder in ("specs", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    if words[0] == "run":
        invoke(["specs/tiny-cpu.yaml"], tmp_path)
    if words[0] == "simulate":
        invoke([words[1]], tmp_path)
    shown = invoke(words, tmp_path)
    if words[0] == "specs/tiny-cpu.yaml":  # the last line names the engine in the cache of this machine
        shown = re.sub(
            r"(compiled the engine|the engine is in the cache already)\n.*\n", "compiled the engine\n", shown
        )
    assert shown == output


def invoke(words: list[str], folder: Path) -> str:
    """What a terminal shows, without the log lines: both streams in the order in which they are written."""
    command = [sys.executable, "-m", "deepinfer_gen", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
    )
    return re.sub(r"^INFO .*\n", "", result.stdout, flags=re.MULTILINE)


def test_the_first_block_is_two_lines_that_install_and_test() -> None:
    lines = re.search(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL).group(1).splitlines()  # type: ignore[union-attr]
    assert len(lines) == 2
    assert "deepinfer-gen specs/tiny-cpu.yaml && deepinfer-gen run generated/tiny-cpu --prompt" in lines[0]
    assert "pytest" in lines[1]


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Tables of rows of cells, the header first and without the line of dashes."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [
        [line.strip("|").split("|") for line in block.splitlines() if not line.startswith("|-")] for block in blocks
    ]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def test_the_models_figures_are_those_of_the_report() -> None:
    """What the README says of the shipped model stands in the report that ``quality --write`` made."""
    report = markdown_tables((ROOT / "bench" / "results" / "quality-tiny-v41-code.md").read_text())
    bits, heads, _, drafts, confidence = report
    bits_of = {(name, knows.split(" ")[0]): value for name, knows, value in bits}
    parsed = {name: enough for name, _, enough, _ in heads}
    product_error, product_auc, single_auc = confidence[-1][1:4]
    (shown,) = (table for table in markdown_tables(README) if table[0][0] == "on files it never read")
    assert [row[1:] for row in shown[1:]] == [
        [
            bits_of["tiny-v41-code", "its"], bits_of["5-gram model", "the"],
            bits_of["xz -9e", "the"], bits_of["xz -9e", "nothing;"],
        ],
        [parsed["tiny-v41-code"], parsed["5-gram model"], "", ""],
        [parsed["tiny-v41-code, behind 512 tokens of the file"], "", "", ""],
        [drafts[1][0], "", "", ""],
        [f"{product_auc}; {single_auc}", "", "", ""],
        [f"{float(product_error.rstrip('%')):.1f} %", "", "", ""],
    ]  # fmt: skip
