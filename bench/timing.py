"""Timing of whole commands and one Markdown row per case."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

HEADER = "| case | median | min | max | runs | × beside | beside |\n|---|---:|---:|---:|---:|---:|---|"


def seconds(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Wall seconds of one run of ``command``, which must succeed."""
    start = time.perf_counter()
    result = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    elapsed = time.perf_counter() - start
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return elapsed


def paired(runs: int, case: Callable[[], float], beside: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Time the case and its yardstick in turn, so that a drift of the machine meets both."""
    pairs = [(case(), beside()) for _ in range(runs)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def row(name: str, times: Sequence[float], yardstick: Sequence[float], yardstick_name: str, unit: str = "s") -> str:
    """One Markdown row; the ratio is the median of the pairwise ratios."""
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    middle, low, high = (f(times) * scale for f in (statistics.median, min, max))
    ratio = statistics.median(a / b for a, b in zip(times, yardstick, strict=True))
    beside = f"{yardstick_name}: {statistics.median(yardstick) * scale:.3f} {unit}"
    return f"| {name} | {middle:.3f} {unit} | {low:.3f} | {high:.3f} | {len(times)} | {ratio:.2f} | {beside} |"
