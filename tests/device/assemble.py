"""The import package without an installation, for scripts that run where nothing can be installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("specs", "codegen", "templates", "runtime")


def assemble(folder: Path) -> None:
    """The import package as setup.py maps it, as links below ``folder``; it and the test helpers become importable."""
    package = folder / "deepinfer_gen"
    package.mkdir()
    for entry in (*(ROOT / "src" / "deepinfer_gen").iterdir(), *(ROOT / name for name in FOLDERS)):
        (package / entry.name).symlink_to(entry)
    sys.path[:0] = [str(folder), str(ROOT / "tests" / "helpers")]
