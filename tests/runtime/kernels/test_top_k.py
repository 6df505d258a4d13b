"""The top-k filter: the TileLang kernel against a sort, and with top-p against the sampler's reference."""

from __future__ import annotations

import pytest
from kernel_cases import disagreements


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("top_k", "cpu") == []
