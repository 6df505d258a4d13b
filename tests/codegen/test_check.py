import json
from pathlib import Path

import pytest
from resign import replace_once, resign
from shipped import NAMES, shipped_plan

from deepinfer_gen.canonical import json_text, sealed
from deepinfer_gen.codegen.check import Drift, check
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.write import write_folder

TINY = "tiny-cpu"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    write_folder(render(shipped_plan(TINY)), tmp_path / TINY)
    return tmp_path


def drifts(parent: Path) -> dict[str, Drift]:
    return {drift.file.removeprefix(f"{parent}/"): drift for drift in check([shipped_plan(TINY)], parent)}


def test_a_fresh_folder_has_no_drift(parent: Path) -> None:
    assert check([shipped_plan(TINY)], parent) == ()


def test_the_committed_folders_have_no_drift() -> None:
    assert check([shipped_plan(name) for name in NAMES], Path(__file__).parents[2] / "generated") == ()


def test_a_standalone_folder_is_checked_as_one(tmp_path: Path) -> None:
    write_folder(render(shipped_plan(TINY), standalone=True), tmp_path / TINY)
    assert check([shipped_plan(TINY)], tmp_path) == ()


def test_every_missing_folder_is_named(tmp_path: Path) -> None:
    found = check([shipped_plan(name) for name in NAMES], tmp_path)
    assert [drift.file for drift in found] == [str(tmp_path / name) for name in NAMES]
    assert all("deepinfer-gen" in drift.as_text() for drift in found)


def test_a_hand_edit_shows_as_a_diff(parent: Path) -> None:
    config = parent / TINY / "engine_config.hpp"
    config.write_text(config.read_text().replace("kBlockSize = 32;", "kBlockSize = 64;"))
    (found,) = drifts(parent).values()
    assert found.file == str(config)
    assert "changed by hand" in found.reason
    assert "kBlockSize = 64" in found.diff
    assert "kBlockSize = 32" in found.diff
    assert found.as_text().startswith(f"{config}: was changed by hand\n--- ")


def test_a_resigned_folder_is_stale(parent: Path) -> None:
    resign(parent / TINY, {"PLAN.md": replace_once("# tiny-cpu", "# tiny")})
    found = drifts(parent)
    assert set(found) == {f"{TINY}/PLAN.md", f"{TINY}/manifest.json"}
    assert all("stale" in drift.reason for drift in found.values())


def test_missing_and_extra_files(parent: Path) -> None:
    (parent / TINY / "layout.json").unlink()
    (parent / TINY / "notes.txt").write_text("mine")
    found = drifts(parent)
    assert {name: drift.reason.split()[1] for name, drift in found.items()} == {
        f"{TINY}/layout.json": "missing",
        f"{TINY}/notes.txt": "extra:",
    }


def test_only_the_tool_version_may_differ(parent: Path) -> None:
    path = parent / TINY / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json_text(sealed({**content, "tool_version": "9.9.9"})))
    assert drifts(parent) == {}
    path.write_text(json_text(sealed({**content, "schema_digest": "0" * 64})))
    assert set(drifts(parent)) == {f"{TINY}/manifest.json"}


@pytest.mark.parametrize("damage", ["missing", "json", "digest"])
def test_a_damaged_manifest_is_a_drift(parent: Path, damage: str) -> None:
    path = parent / TINY / "manifest.json"
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("{" if damage == "json" else '"tiny-cpu"', "", 1))
    assert set(drifts(parent)) == {f"{TINY}/manifest.json"}
