"""Paged writes of records: the TileLang kernel against an index_put of torch."""

from __future__ import annotations

import pytest
from kernel_cases import disagreements


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("kv_scatter", "cpu") == []
