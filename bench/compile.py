"""Time the compiler: ``python bench/compile.py [--runs N]``.

Each case is a whole command as a user types it, paired run by run with a yardstick on the same machine: an empty Python
start for the quick ones, a translation unit that includes only <vector> for those that compile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from timing import HEADER, paired, row, seconds

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "specs" / "tiny-cpu.yaml"
COMMAND = [sys.executable, "-m", "deepinfer_gen"]
QUICK = ("python -c pass", [sys.executable, "-c", "pass"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/compile.py --runs 5"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each quick case; the compiling ones take a third")
    runs = parser.parse_args().runs
    few = max(1, runs // 3)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        source = scratch / "empty.cpp"
        source.write_text("#include <vector>\nint main() { return static_cast<int>(std::vector<int>{}.size()); }\n")
        compiler = ("g++ of <vector>", ["g++", "-std=c++20", "-O2", "-c", str(source), "-o", str(scratch / "empty.o")])
        print(HEADER)
        cases = (
            ("--help", runs, QUICK, lambda: seconds([*COMMAND, "--help"])),
            ("plan", runs, QUICK, lambda: seconds([*COMMAND, "plan", str(SPEC)])),
            ("explain", runs, QUICK, lambda: seconds([*COMMAND, "explain", str(SPEC), "kv.bytes_per_token"])),
            (
                "check, all shipped specs",
                runs,
                QUICK,
                lambda: seconds([*COMMAND, "check", *shipped(), "-o", str(ROOT / "generated")]),
            ),
            ("spec to files", runs, QUICK, lambda: spec_to_files(scratch)),
            ("cold build", few, compiler, lambda: cold_build(scratch, bindings_cached=False)),
            ("cold build, bindings cached", few, compiler, lambda: cold_build(scratch, bindings_cached=True)),
            ("warm no-op", runs, QUICK, lambda: warm(scratch)),
            ("wheel", few, QUICK, lambda: wheel(scratch)),
        )
        for name, count, (yardstick_name, yardstick), case in cases:
            times, beside = paired(count, case, lambda command=yardstick: seconds(command))
            print(row(name, times, beside, yardstick_name), flush=True)


def shipped() -> list[str]:
    return [str(path) for path in sorted((ROOT / "specs").glob("*.yaml"))]


def spec_to_files(scratch: Path) -> float:
    parent = fresh(scratch, "files")
    return seconds([*COMMAND, str(SPEC), "--no-build", "-o", str(parent)])


def cold_build(scratch: Path, *, bindings_cached: bool) -> float:
    """A build into an empty cache, or into one that holds the bindings object from another engine's build."""
    cache = {"DEEPINFER_CACHE_DIR": str(fresh(scratch, "cache"))}
    parent = fresh(scratch, "engines")
    if bindings_cached:
        other = scratch / "other.yaml"
        other.write_text(
            SPEC.read_text().replace("name: tiny-cpu", "name: other").replace("max_num_seqs: 16", "max_num_seqs: 8")
        )
        seconds([*COMMAND, str(other), "-o", str(parent)], cache)
    return seconds([*COMMAND, str(SPEC), "-o", str(parent)], cache)


def warm(scratch: Path) -> float:
    """The same command again: files and engine are already there."""
    cache = {"DEEPINFER_CACHE_DIR": str(scratch / "cache")}
    return seconds([*COMMAND, str(SPEC), "-o", str(scratch / "engines")], cache)


def wheel(scratch: Path) -> float:
    target = fresh(scratch, "wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target)]
    return seconds([*command, str(ROOT)])


def fresh(scratch: Path, name: str) -> Path:
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
