"""The engines of ``scheduler_configs``, each built when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest
from scheduler_configs import SPECS, load_spec


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """``engine(name)``: the extension module of the spec with that name."""
    parent = tmp_path_factory.mktemp("engines")
    return cache(lambda name: load_spec(name, SPECS[name], parent))
