"""Every bad spec under ``tests/errors`` gives exactly its expected stderr and exit status 2; every code has a case."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_gen.codegen.cli import main

ERRORS = Path(__file__).parents[1] / "errors"
CASES = sorted(p.stem for p in ERRORS.glob("*.yaml"))
SOURCES = sorted((ERRORS.parents[1] / "specs").glob("*.py"))


Diagnose = Callable[[str], str]


@pytest.fixture
def diagnose(capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """What ``plan`` writes to stderr about a spec that it refuses."""

    def refused(path: str) -> str:
        status = main(["plan", path])
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        return captured.err

    return refused


@pytest.mark.parametrize("case", CASES)
def test_expected_text(case: str, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ERRORS)
    assert diagnose(f"{case}.yaml") == (ERRORS / f"{case}.txt").read_text(encoding="utf-8")


def test_there_are_enough_cases_and_no_orphans() -> None:
    assert len(CASES) >= 45
    assert sorted(p.stem for p in ERRORS.glob("*.txt")) == CASES


def test_every_code_has_a_case() -> None:
    raised = {code for source in SOURCES for code in re.findall(r'"(DI\d{3})"', source.read_text(encoding="utf-8"))}
    expected = {
        code
        for case in CASES
        for code in re.findall(r"error\[(DI\d{3})\]", (ERRORS / f"{case}.txt").read_text("utf-8"))
    }
    # A file that cannot be read or is too large is made in test_load.py rather than committed.
    assert raised - expected == {"DI001", "DI002"}
    assert all(1 <= int(code[2:]) <= 99 for code in raised)


def test_files_are_shown_relative_to_where_the_user_is(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ERRORS.parent)
    assert diagnose("errors/unknown-key.yaml").startswith("errors/unknown-key.yaml:9:3: error[DI011]")
    assert diagnose("errors/model-output-groups.yaml").startswith(
        "errors/models/output-groups.json:29:17: error[DI081]"
    )
