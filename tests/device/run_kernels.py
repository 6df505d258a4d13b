"""Run every TileLang kernel on this machine's GPU and compare it with the torch reference.

    PYTHONPATH=FOLDER_WITH_TILELANG python tests/device/run_kernels.py [KERNEL]...

Needs torch with CUDA, nvcc and the packages of the extra ``tilelang``; deepinfer-gen need not be installed. Prints one
line per kernel: how many comparisons agree, or the first that does not. The exit status is 1 if any kernel failed.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path

from assemble import assemble


def run(names: list[str]) -> int:
    """Compare the named kernels, or all of them."""
    import torch
    from kernel_cases import KERNELS, Bench

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    failed = 0
    for name in names or KERNELS:
        start, agreed, wrong = time.monotonic(), 0, ""
        try:
            for comparison in KERNELS[name](Bench("cuda")):
                torch.cuda.synchronize()
                if wrong := comparison.wrong():
                    break
                agreed += 1
        except Exception as fault:
            traceback.print_exc()
            wrong = f"{type(fault).__name__}: {str(fault).strip().splitlines()[:1]}"
        failed += bool(wrong) or not agreed
        state = f"FAILED after {agreed} comparisons: {wrong}" if wrong else f"{agreed} comparisons agree"
        print(f"{name:14} {state} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as links:
        assemble(Path(links))
        sys.exit(run(sys.argv[1:]))
