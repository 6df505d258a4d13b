"""Packing e2m1 codes: the helper's fractions give the golden records, and the kernel the same bytes as both."""

from __future__ import annotations

import fp4_by_hand
import numpy as np
import pytest
import torch
from kernel_cases import GOLDEN, RECORDS, disagreements


@pytest.mark.parametrize("format", RECORDS)
def test_the_golden_records_are_those_worked_out_by_hand(format: str) -> None:
    records, _, dims = RECORDS[format]
    golden = np.load(GOLDEN)
    made = fp4_by_hand.encode(torch.from_numpy(golden["x"][:, :dims].copy()), format)
    assert (made.numpy() == golden[records]).all()


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("fp4_pack", "cpu") == []
