"""Running commands in this process, and specs to run them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deepinfer_gen.codegen.cli import main

SPEC = """\
engine:
  name: case
model: tiny-v41
hardware: cpu
limits:
  max_num_seqs: 16
  max_model_len: 1024
kv:
  block_size: 32
speculative:
  nextn: 0
numerics:
  policy: float32_unquantized
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]
WriteSpec = Callable[..., str]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Result:
        status = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def write_spec(tmp_path: Path) -> WriteSpec:
    """``write_spec("b.yaml", ("block_size: 32", "block_size: 64"))``: the base spec with texts replaced."""

    def write(name: str = "case.yaml", *replacements: tuple[str, str]) -> str:
        text = SPEC
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def folder(tmp_path: Path, write_spec: WriteSpec, cli: Cli) -> Path:
    """A generated folder of the base spec."""
    assert cli(write_spec(), "-o", tmp_path / "engines", "--no-build").status == 0
    return tmp_path / "engines" / "case"
