"""Unpacking e2m1 codes: the helper's fractions give the golden numbers, and the kernel the same bits as both."""

from __future__ import annotations

import fp4_by_hand
import numpy as np
import pytest
import torch
from kernel_cases import GOLDEN, RECORDS, bits, disagreements


@pytest.mark.parametrize("format", RECORDS)
def test_the_golden_numbers_are_those_worked_out_by_hand(format: str) -> None:
    records, decoded, _ = RECORDS[format]
    golden = np.load(GOLDEN)
    made = fp4_by_hand.decode(torch.from_numpy(golden[records]), format)
    assert (bits(made) == bits(torch.from_numpy(golden[decoded]))).all()


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("fp4_unpack", "cpu") == []
