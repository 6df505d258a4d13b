"""A virtual environment with nemo-automodel on top of the packages of the running interpreter, torch among them."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PACKAGE = "nemo-automodel==0.7.0"
_NEEDS = ("transformers==5.18.0", "einops", "psutil", "pillow", "pyyaml")
_READY = "second-opinion.txt"


def interpreter(folder: Path) -> Path:
    """The environment's interpreter; makes the environment on first use, from the package index that pip knows."""
    python = folder / "bin" / "python"
    if not (folder / _READY).is_file():
        venv.create(folder, clear=True, with_pip=True)
        site = next(folder.glob("lib/python*/site-packages"))
        # Its own distribution asks for a training stack that a forward pass does not need, and for another torch.
        visible = [path for path in sys.path if Path(path).name == "site-packages"]
        (site / "underlying.pth").write_text("\n".join(visible) + "\n", encoding="utf-8")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", PACKAGE], check=True)
        subprocess.run([*pip, *_NEEDS], check=True)
        (folder / _READY).write_text(f"{PACKAGE}\n", encoding="utf-8")
    return python
