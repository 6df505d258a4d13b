"""Install deepinfer-gen from this checkout into the active environment: ``tools/install.py [--test] [--tilelang]``.

A torch that is already there is kept at exactly its version. Otherwise the pinned release is installed, and pip takes
its CPU build (``+cpu``) wherever one of the configured package sources has it, since a local version sorts above the
plain one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "2.13.0"
PYTHONS = ((3, 11), (3, 13))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python tools/install.py --test"
    )
    parser.add_argument("--test", action="store_true", help="also install what the tests and linters need")
    parser.add_argument("--tilelang", action="store_true", help="also install what compiles the TileLang kernels")
    arguments = parser.parse_args()
    low, high = PYTHONS
    if not low <= sys.version_info[:2] <= high:
        wanted = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
        return _fail(
            f"Python {wanted} is needed, this is {sys.version.split()[0]}", "make the environment with one of them"
        )
    if shutil.which("g++") is None and shutil.which("c++") is None:
        return _fail("no C++ compiler found, engines are compiled on this machine", "apt-get install g++ (12 or newer)")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(f"torch=={installed_torch() or TORCH}\n")
        extras = ",".join(name for name in ("test", "tilelang") if getattr(arguments, name))
        target = f"{ROOT}[{extras}]" if extras else str(ROOT)
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            str(constraints),
            "--editable",
            target,
        ]
        return subprocess.run(command, check=False).returncode


def installed_torch() -> str:
    """The version of the torch already installed, or an empty string."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _fail(message: str, remedy: str) -> int:
    print(f"error: {message}\nhelp: {remedy}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
