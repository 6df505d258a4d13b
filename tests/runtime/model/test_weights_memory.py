"""Loading takes little more memory than what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "model_loading.py"


@pytest.mark.long
def test_peak_of_loading_a_layer_of_released_widths() -> None:
    """At most 1.1 x the loaded bytes, whole and for one rank; keeping mapped pages would take much more."""
    done = subprocess.run([sys.executable, BENCH, "--experts", "6"], capture_output=True, text=True, check=True)
    _, _, tiny, whole, half = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines())
    assert tiny[0] == "tiny-v41"
    for row in (whole, half):
        assert row[2] == row[3], "loaded and read bytes"
        assert float(row[5]) <= 1.1
        assert float(row[6]) > 1.5
    experts = 3 * (2304 * 2560 + 2304 * 160)
    assert int(whole[2].replace(",", "")) - int(half[2].replace(",", "")) == 3 * experts
