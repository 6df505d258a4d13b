"""What an installed package consists of: a wheel built from the folders that pyproject.toml and setup.py name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("specs", "codegen", "templates", "runtime", "src")
BESIDE_THE_WEIGHTS = ("NOTICE", "LICENSE.python", "confidence_temperatures.json")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build from, since setuptools leaves its work there; a preset has files of every kind."""
    folder = tmp_path_factory.mktemp("wheel") / "checkout"
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in BESIDE_THE_WEIGHTS:
        (folder / "specs" / "models" / "tiny-v41" / name).write_text(name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", checkout.parent, checkout], check=True)
    (path,) = checkout.parent.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_every_file_of_a_preset_is_in_the_wheel(checkout: Path, wheel: dict[str, bytes]) -> None:
    """Notices and licences included, whatever their ending: they go where the weights go."""
    models = checkout / "specs" / "models"
    expected = {
        f"deepinfer_gen/specs/models/{path.relative_to(models).as_posix()}": path.read_bytes()
        for path in models.rglob("*")
        if path.is_file()
    }
    assert {name: data for name, data in wheel.items() if name.startswith("deepinfer_gen/specs/models/")} == expected


def test_the_wheel_holds_the_package_and_nothing_else(checkout: Path, wheel: dict[str, bytes]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"deepinfer_gen"}
    for name in SOURCES[:-1]:
        code = {p.relative_to(checkout).as_posix() for p in (checkout / name).rglob("*.py")}
        assert {f"deepinfer_gen/{path}" for path in code} <= wheel.keys()
    specs = {f"deepinfer_gen/{p.relative_to(checkout).as_posix()}" for p in (checkout / "specs").glob("*.yaml")}
    assert specs <= wheel.keys()


def test_what_the_code_model_was_made_from_is_named_where_installers_look(wheel: dict[str, bytes]) -> None:
    """Beside the package's own licence, too."""
    licences = {name.split("/licenses/")[1] for name in wheel if "/licenses/" in name}
    assert {"LICENSE", *(f"specs/models/tiny-v41-code/{name}" for name in ("NOTICE", "LICENSE.python"))} <= licences
