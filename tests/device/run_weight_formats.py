"""Weights rounded on this machine's GPU and on its CPU, bit by bit: ``python tests/device/run_weight_formats.py``.

Needs torch with CUDA; deepinfer-gen need not be installed. Training rounds on a GPU what is exported on a CPU. Prints
one line per stored form; the exit status is 1 if any bit differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from assemble import assemble

STORAGES = ("f32", "bf16", "fp8", "mxfp4", "mxfp8")


def run(device: str) -> int:
    """Compare every stored form on ``device``."""
    import torch
    from weight_formats import represented

    generator = torch.Generator().manual_seed(0)
    # Every magnitude that is no subnormal after scaling, ties of all formats among them, and tiles that are cut.
    exact = torch.randint(-64, 65, (1000, 480), generator=generator) * 0.125
    wide = torch.randn(1000, 480, generator=generator) * torch.exp2(
        torch.randint(-60, 60, (1000, 480), generator=generator).float()
    )
    failed = 0
    for storage in STORAGES:
        start, wrong = time.monotonic(), 0
        for weights in (exact, wide, torch.zeros(3, 32)):
            here, there = represented(storage, weights), represented(storage, weights.to(device)).cpu()
            wrong += int((here.view(torch.int32) != there.view(torch.int32)).sum())
        failed += bool(wrong)
        state = f"{wrong} numbers DIFFER" if wrong else "equal bits"
        print(f"{storage:6} {state} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as links:
        assemble(Path(links))
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "train_tiny"))
        sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else "cuda"))
