"""Engines for the simulator's tests, by name; each is compiled when a test first asks for it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from simulated import OVERLAPPED, RECOMPUTE, SCARCE, build_spec, parsed
from tiny_spec import TINY, TINY_SPEC

from deepinfer_gen.runtime.loader import LoadedEngine, load_engine
from deepinfer_gen.runtime.simulate.run import Outcome, simulate

SPECS = {
    TINY: str(TINY_SPEC),
    "recompute": SCARCE.format(name="recompute", type="NORMAL") + OVERLAPPED + RECOMPUTE,
    "normal": "v41-flash-normal-ep8",
    "prompt": SCARCE.format(name="prompt", type="PROMPT"),
    "completion": SCARCE.format(name="completion", type="COMPLETION") + OVERLAPPED,
}
EngineOf = Callable[[str], LoadedEngine]


@pytest.fixture(scope="session")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> EngineOf:
    made: dict[str, LoadedEngine] = {}

    def engine(name: str) -> LoadedEngine:
        if name not in made:
            made[name] = load_engine(build_spec(SPECS[name], tmp_path_factory.mktemp("simulated")))
        return made[name]

    return engine


Simulated = Callable[..., tuple[Outcome, list[dict[str, Any]]]]


@pytest.fixture
def simulated(engine_of: EngineOf, tmp_path: Path) -> Simulated:
    """``simulated(engine, lines, events=(), ranks=1, **options)`` gives the outcome and the trace."""

    def run(
        engine: str, lines: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]] = (), ranks: int = 1, **more: Any
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        workload, plan = parsed(tmp_path, lines, events, ranks)
        trace = io.StringIO()
        outcome = simulate([engine_of(engine)] * ranks, workload, plan, trace=trace, **more)
        return outcome, [json.loads(line) for line in trace.getvalue().splitlines()]

    return run
