"""B26: what prepares and launches a step must not wait for the device to know a value."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
LAUNCH_PATH = [RUNTIME / name for name in ("batch.py", "graphs.py", "kv_cache.py")] + sorted(
    (RUNTIME / "model").glob("*.py")
)
WAITS = ("item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "synchronize")

ALLOWED = {
    ("batch.py", "tolist"): 1,  # lengths of the rows, borrowed from the scheduler: memory of the host
    ("batch.py", "numpy"): 1,  # the views through which the host fills its staging buffer, made once
    ("truncation.py", "nonzero"): 2,  # which rows of a prefill step are kept, by position: likewise; decode has none
    ("single_tokens.py", "tolist"): 3,  # the reference's batch-invariant mode loops over rows on the host
    ("model.py", "nonzero"): 1,  # which logits that loop is asked for
    ("step_context.py", "nonzero"): 2,  # which tokens close a group, by position: the reference backend is the host
}
"""Calls that do not wait for a device, or not on any that exists, and how many there are."""


def waits(text: str) -> list[str]:
    """Names of calls whose result has to come from the device, boolean-mask indexing among them."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
            found.append(node.func.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Compare, ast.BoolOp)):
            found.append("mask")
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n = lengths.max().item()", ["item"]),
        ("rows = x[x > 0]", ["mask"]),
        ("rows = torch.nonzero(x)", ["nonzero"]),
        ("ids = tokens.cpu().tolist()", ["tolist", "cpu"]),
        ("y = x[index]\nz = torch.where(x > 0, x, y)", []),
    ],
)
def test_b26_the_lint_sees_a_wait(text: str, found: list[str]) -> None:
    assert waits(text) == found


def test_b26_the_launch_path_does_not_wait_for_the_device() -> None:
    """A hidden read of a device value inside metadata preparation hung all ranks with chunked prefill."""
    found = Counter((path.name, name) for path in LAUNCH_PATH for name in waits(path.read_text(encoding="utf-8")))
    assert found == Counter(ALLOWED)
