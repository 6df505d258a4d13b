"""The device's split of verification lengths: the TileLang kernel against the torch form."""

from __future__ import annotations

import pytest
from kernel_cases import disagreements


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("varlen_split", "cpu") == []
