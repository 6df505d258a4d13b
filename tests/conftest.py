"""All tests, and the commands that they start, build engines in one cache of their own."""

import os
import signal
from collections.abc import Iterator

import engines_ahead
import pytest
from built import TEST_CACHE

os.environ["DEEPINFER_CACHE_DIR"] = str(TEST_CACHE)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell that starts the tests in the background leaves Ctrl-C ignored, which their child processes inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def compiled_ahead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run over several folders compiles its scheduler engines beside the tests that come first."""
    folders = {item.path.relative_to(request.config.rootpath).parts[1] for item in request.session.items}
    if {"codegen", "reference", "sim"} <= folders:
        engines_ahead.start(tmp_path_factory.mktemp("engines_ahead"))
