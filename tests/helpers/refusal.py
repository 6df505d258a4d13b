"""The one way to expect a refused call: ValueError with its values, and a scheduler that is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def refused(scheduler: Any, words: str) -> Iterator[None]:
    """The call inside raises ``ValueError`` whose text matches ``words`` and changes nothing."""
    before = scheduler.fingerprint(), scheduler.stats()
    with pytest.raises(ValueError, match=words):
        yield
    assert (scheduler.fingerprint(), scheduler.stats()) == before, "a refused call changes nothing"
    scheduler.check_invariants()
