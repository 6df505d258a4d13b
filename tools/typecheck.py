"""Run mypy in strict mode over the import package and the training of the small model: ``python tools/typecheck.py``.

setup.py assembles the package from top-level folders, which mypy cannot see; a tree of links under ``build/`` gives it
the installed shape, and paths in its output are those of the repository. The modules of ``tools/train_tiny`` import
each other as top-level ones, so they are checked by a run of their own, beside the package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("specs", "codegen", "templates", "runtime")


def main() -> int:
    tree = ROOT / "build" / "typecheck"
    package = tree / "deepinfer_gen"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()
    for entry in (ROOT / "src" / "deepinfer_gen").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for folder in FOLDERS:
        (package / folder).symlink_to(ROOT / folder)
    training = tree / "train_tiny"
    if not training.is_symlink():
        training.symlink_to(ROOT / "tools" / "train_tiny")
    modules = sorted(str(file.relative_to(tree)) for file in training.glob("*.py"))
    return max(_mypy(tree, "-p", "deepinfer_gen"), _mypy(tree, *modules))


def _mypy(tree: Path, *what: str) -> int:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *what]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    sys.stdout.write(result.stdout.replace("deepinfer_gen/", "").replace("train_tiny/", "tools/train_tiny/"))
    sys.stderr.write(result.stderr)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
