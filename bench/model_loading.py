"""Peak memory of loading beside the loaded bytes: ``python bench/model_loading.py [--experts N]``.

Each case loads in a process of its own, which first imports everything and resets the kernel's high-water mark (VmHWM);
the peak is that mark less the resident memory before loading, and covers the checked headers, the tensors and mapped
pages. Every tensor is held to the end. Beside it stands a reader that keeps the mapped pages of what it copied.

The checkpoint of tiny-v41 is small beside the interpreter's own movements; the other one is a layer of the released
widths with random bytes, written to a temporary folder, whole and for one rank of a group.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
VOCABULARY = 8192


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/model_loading.py --experts 8"
    )
    parser.add_argument("--experts", type=int, default=18, help="routed experts of the layer, 18.8 MB each")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        plan_folder, checkpoint, rank, ranks, reader = arguments.child
        measure(Path(plan_folder), Path(checkpoint), int(rank), int(ranks), reader)
        return
    print("| case | tensors | loaded bytes | read bytes | peak bytes | peak / loaded | pages kept: peak / loaded | s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as work:
        for name, plan_folder, checkpoint, rank, ranks in cases(Path(work), arguments.experts):
            kept, mine = (
                child(plan_folder, checkpoint, rank, ranks, reader) for reader in ("pages kept", "pages given back")
            )
            loaded = mine["loaded"]
            print(
                f"| {name} | {mine['tensors']:,} | {loaded:,} | {mine['read']:,} | {mine['peak']:,} |"
                f" {mine['peak'] / loaded:.3f} | {kept['peak'] / loaded:.3f} | {mine['seconds']:.2f} |",
                flush=True,
            )


def cases(work: Path, experts: int) -> Sequence[tuple[str, Path, Path, int, int]]:
    """Name, folder of the plan's spec, checkpoint folder, rank and ranks; writes what is missing."""
    from checkpoints import one_layer_config, plan_of, write_random

    from deepinfer_gen.runtime.model.constants import Constants
    from deepinfer_gen.runtime.weights_names import demand
    from deepinfer_gen.specs.presets import preset_folder

    config = one_layer_config(vocab_size=VOCABULARY, engram_compressed_vocab_size=VOCABULARY, n_routed_experts=experts)
    plan_of(work / "tiny")
    whole = plan_of(work / "layer", config)
    plan_of(work / "layer-half", config, ep=2)
    write_random(work / "checkpoint", demand(whole, Constants.of(whole)).all, shards=3)
    layer = f"a released layer of {experts} experts"
    return (
        ("tiny-v41", work / "tiny", preset_folder("tiny-v41"), 0, 1),
        (layer, work / "layer", work / "checkpoint", 0, 1),
        (f"{layer}, rank 1 of 2", work / "layer-half", work / "checkpoint", 1, 2),
    )


def child(plan_folder: Path, checkpoint: Path, rank: int, ranks: int, reader: str) -> dict[str, float]:
    arguments = [str(plan_folder), str(checkpoint), str(rank), str(ranks), reader]
    command = [sys.executable, __file__, "--child", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(plan_folder: Path, checkpoint: Path, rank: int, ranks: int, reader: str) -> None:
    """Load every tensor of the rank, keep it, and print the figures as JSON."""
    import mmap

    from deepinfer_gen.codegen.derive import derive
    from deepinfer_gen.codegen.views.model import model_plan
    from deepinfer_gen.runtime.model.constants import Constants
    from deepinfer_gen.runtime.weights import MetaWeights, load_weights
    from deepinfer_gen.runtime.weights_names import demand
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    plan = model_plan(derive(resolve(load_spec(plan_folder / "spec.yaml"))))
    constants = Constants.of(plan)
    names = list(demand(plan, constants, rank, ranks).held)
    MetaWeights(plan, constants, rank, ranks).stored(names[0])  # what the first tensor of a process initialises
    if reader == "pages kept":
        mmap.MADV_DONTNEED = mmap.MADV_NORMAL
    Path("/proc/self/clear_refs").write_text("5")
    before, began = memory("VmRSS"), time.perf_counter()
    weights = load_weights(plan, constants, checkpoint, rank, ranks)
    tensors = [weights.stored(name) for name in names]
    seconds, peak = time.perf_counter() - began, memory("VmHWM") - before
    report = weights.report
    assert report.loaded_bytes == sum(tensor.nbytes for tensor in tensors)
    figures = {"tensors": report.loaded, "loaded": report.loaded_bytes, "read": weights.read_bytes}
    print(json.dumps({**figures, "peak": peak, "seconds": seconds}))


def memory(field: str) -> int:
    """Bytes of a line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
