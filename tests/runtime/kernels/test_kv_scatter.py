"""Paged writes of records: the TileLang kernel against an index_put of torch."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import Bench, disagreements


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("kv_scatter", "cpu") == []


@pytest.mark.long
def test_records_that_do_not_fit_their_rows_are_refused() -> None:
    scatter = Bench("cpu").kernel("kv_scatter", threads=128)
    where = torch.zeros(1, dtype=torch.int64)
    for grid in (torch.zeros(2, 2, 7, dtype=torch.uint8), torch.zeros(2, 2, 8)):
        with pytest.raises(ValueError, match=r"records \(1, 8\) of torch\.uint8 into rows \(2, 2, [78]\)"):
            scatter(grid, where, where, torch.zeros(1, 8, dtype=torch.uint8))
