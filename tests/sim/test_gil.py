"""The interpreter is free during every call of the scheduler: other Python threads run meanwhile.

The interpreter never takes itself away from a thread here (the switch interval is endless), so another thread runs only
where a call lets it. A call is kept inside by the engine's lock, which a second thread holds in a long call.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BINDINGS = Path(__file__).resolve().parents[2] / "templates" / "src" / "bindings.cpp"
NONE = np.array([], np.int32)
MANY = 50_000  # requests; a walk over all of them takes long enough for two threads to start
ATTEMPTS = 40  # how often the threads may miss each other; a call that keeps the interpreter is missed every time


@pytest.fixture
def never_interrupted() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def crowded(engines: dict[str, ModuleType]) -> Any:
    """A scheduler whose fingerprint takes a while."""
    scheduler = engines["varlen"].Scheduler()
    scheduler.set_cost_curve(np.arange(1.0, 9.0))
    prompt = np.arange(33, dtype=np.int32)  # one more than a step takes
    for request in range(1, MANY):
        scheduler.add(request, prompt, 1, 0, NONE)
    return scheduler


CALLS: dict[str, Callable[[Any], Any]] = {
    "add": lambda s: s.add(MANY + 1, np.array([1], np.int32), 1, 0, NONE),
    "add_prompted": lambda s: s.add_prompted(MANY + 2, np.array([1, 2], np.int32), 1, 5, 0, NONE),
    "fork": lambda s: s.fork(1, np.array([MANY + 3], np.uint64)),
    "pause": lambda s: s.pause(2),
    "resume": lambda s: s.resume(2),
    "begin_transfer": lambda s: s.begin_transfer(1),
    "end_transfer": lambda s: s.end_transfer(1),
    "blocks": lambda s: s.blocks(1),
    "slot": lambda s: s.slot(1),
    "abort": lambda s: s.abort(2),
    "finish": lambda s: s.finish(2, 3),
    "set_pending": lambda s: s.set_pending(False),
    "set_error": lambda s: s.set_error("none"),
    "set_cost_curve": lambda s: s.set_cost_curve(np.arange(1.0, 9.0)),
    "observe": lambda s: s.observe(4, 1, 1.0, 0.1),
    "begin_step": lambda s: s.begin_step(None),
    "vote": lambda s: s.vote(),
    "resolve_vote": lambda s: s.resolve_vote(np.ones(6, np.int32)),
    "flags": lambda s: s.flags(),
    "decision": lambda s: s.decision(),
    "step": lambda s: s.step(),
    "commit": lambda s: s.commit(1, *RESULTS),
    "outcomes": lambda s: s.outcomes(),
    "fingerprint": lambda s: s.fingerprint(),
    "stats": lambda s: s.stats(),
    "fail_reason": lambda s: s.fail_reason(),
    "check_invariants": lambda s: s.check_invariants(),
    "clone": lambda s: s.clone(),
}
RESULTS = np.zeros((1, 6), np.int32), np.array([0], np.int32), np.zeros((1, 5), np.uint16)


def prepared(crowded: Any, call: str) -> Any:
    """A copy in which ``call`` may be made: a vote is open, a step is not committed, or a transfer is."""
    scheduler = crowded.clone()
    if call in ("vote", "resolve_vote"):
        scheduler.begin_step(None)
    elif call in ("commit", "fork", "begin_transfer", "end_transfer", "blocks", "slot"):
        scheduler.begin_step(None)
        for _ in range(2):
            scheduler.resolve_vote(scheduler.vote())
        if call == "fork":
            scheduler.commit(1, *RESULTS)
            scheduler.begin_step(scheduler.flags())
            for _ in range(2):
                scheduler.resolve_vote(scheduler.vote())
        if call == "end_transfer":
            scheduler.begin_transfer(1)
    return scheduler


def order_of_events(scheduler: Any, call: Callable[[Any], Any]) -> list[str]:
    log: list[str] = []
    started = threading.Event()

    def wait() -> None:
        log.append("in")
        started.set()
        call(scheduler)
        log.append("out")

    # Each starts at once, and gives the interpreter back only inside its call.
    threads = [threading.Thread(target=target) for target in (scheduler.fingerprint, wait)]
    for thread in threads:
        thread.start()
    started.wait()
    log.append("free")
    for thread in threads:
        thread.join()
    return log


@pytest.mark.usefixtures("never_interrupted")
@pytest.mark.parametrize("call", CALLS)
def test_others_run_while_a_call_waits_inside(crowded: Any, call: str) -> None:
    for _ in range(ATTEMPTS):
        if order_of_events(prepared(crowded, call), CALLS[call]) == ["in", "free", "out"]:
            return
    raise AssertionError(f"nobody else ran during {call}")


@pytest.mark.usefixtures("never_interrupted")
def test_a_call_that_keeps_the_interpreter_is_noticed(crowded: Any) -> None:
    orders = [order_of_events(crowded, lambda s: sum(range(10**6))) for _ in range(ATTEMPTS)]
    assert ["in", "free", "out"] not in orders


def test_the_bindings_enter_the_engine_without_the_interpreter_only() -> None:
    text = re.sub(r"//.*", "", BINDINGS.read_text(encoding="utf-8"))
    entries = [match.start() for match in re.finditer(r"engine(?:->|\.\*)\w+", text)]
    assert len(entries) >= 25
    for entry in entries:
        statement = text[max(text.rfind(";", 0, entry), text.rfind("}", 0, entry), text.rfind("{\n", 0, entry)) : entry]
        line = text[text.rfind("\n", 0, entry) : text.find("\n", entry)]
        assert "without_gil(" in statement + line, f"with the interpreter held: {line.strip()}"
