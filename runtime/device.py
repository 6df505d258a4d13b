"""What runs a step's work: one in-order stream with events.

The host submits work and waits only where it needs a result, so it can prepare the next thing meanwhile. The CPU form
runs the stream on a worker thread. The fake form runs the work at once but accounts given latencies on a virtual
clock, so that overlap and ordering are tested without hardware or sleeping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Generic, Protocol, TypeVar

import torch
from torch._C._autograd import _profiler_enabled

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Event(Protocol[T_co]):
    """Completion of one piece of submitted work."""

    def done(self) -> bool:
        """Whether the work has finished by now."""

    def wait(self) -> T_co:
        """Block until it has, then return its result or raise its error."""


class Device(Protocol):
    """One in-order stream of work."""

    @property
    def name(self) -> str:
        """``cpu`` or ``fake``."""

    def submit(self, label: str, work: Callable[[], T]) -> Event[T]:
        """Queue ``work`` behind everything submitted before; returns at once."""

    def now(self) -> float:
        """Monotonic seconds of the clock that this device's latencies count on."""

    def close(self) -> None:
        """Finish the queued work and stop."""


class _Stream:
    """In-order execution with a sticky error: after a fault nothing runs, and every later wait raises that fault."""

    def __init__(self) -> None:
        self._fault: BaseException | None = None

    def run(self, label: str, work: Callable[[], T]) -> T:
        """Run one piece of work under its name in a profile."""
        if self._fault is not None:
            raise self._fault
        try:
            # With or without a profile, naming work costs about as much as handing it over.
            with torch.profiler.record_function(label) if _profiler_enabled() else nullcontext():
                return work()
        except BaseException as fault:
            self._fault = fault
            raise


class _CpuEvent(Generic[T]):
    """A future with one producer: a bare lock is the quickest way to wake another thread."""

    __slots__ = ("_fault", "_pending", "_result")

    def __init__(self) -> None:
        self._pending = Lock()
        self._pending.acquire()
        self._result: T
        self._fault: BaseException | None = None

    def complete(self, work: Callable[[], T]) -> None:
        """Run ``work`` and keep what comes of it; called once, by the stream's thread."""
        try:
            self._result = work()
        except BaseException as fault:  # delivered by wait()
            self._fault = fault
        self._pending.release()

    def done(self) -> bool:
        """Whether the work has finished by now."""
        return not self._pending.locked()

    def wait(self) -> T:
        """Block until it has, then return its result or raise its error."""
        with self._pending:
            pass
        if self._fault is not None:
            raise self._fault
        return self._result


class CpuDevice:
    """The stream is one worker thread."""

    name = "cpu"

    def __init__(self) -> None:
        self._stream = _Stream()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name="deepinfer-stream", daemon=True)
        self._thread.start()

    def submit(self, label: str, work: Callable[[], T]) -> Event[T]:
        """Queue ``work``; ``label`` names it in a profile."""
        if self._closed:
            raise RuntimeError(f"the device was closed; '{label}' cannot run")
        event: _CpuEvent[T] = _CpuEvent()
        self._queue.put(partial(event.complete, partial(self._stream.run, label, work)))
        return event

    def now(self) -> float:
        """``time.monotonic``."""
        return time.monotonic()

    def close(self) -> None:
        """Finish the queued work and stop the thread; nothing can be submitted any more."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        # Autograd modes are per thread, so the stream sets its own.
        with torch.inference_mode():
            while (work := self._queue.get()) is not None:
                work()
                del work  # so that an idle stream holds no results


class _FakeEvent(Generic[T]):
    def __init__(self, device: FakeDevice, end: float, outcome: Future[T]) -> None:
        self._device = device
        self._end = end
        self._outcome = outcome

    def done(self) -> bool:
        """Whether the virtual clock has reached the end of the work."""
        return self._device.now() >= self._end

    def wait(self) -> T:
        """Move the virtual clock to the end of the work."""
        self._device.advance(max(0.0, self._end - self._device.now()))
        return self._outcome.result()


class FakeDevice:
    """A device on a virtual clock: ``latencies`` gives seconds per label, unlisted labels take none.

    ``timeline`` lists (label, start, end) of everything submitted.
    """

    name = "fake"

    def __init__(self, latencies: Mapping[str, float]) -> None:
        self._latencies = dict(latencies)
        self._stream = _Stream()
        self._now = 0.0
        self._free_at = 0.0
        self.timeline: list[tuple[str, float, float]] = []

    def submit(self, label: str, work: Callable[[], T]) -> Event[T]:
        """Run ``work`` at once and account its latency behind what was submitted before."""
        start = max(self._now, self._free_at)
        self._free_at = start + self._latencies.get(label, 0.0)
        self.timeline.append((label, start, self._free_at))
        outcome: Future[T] = Future()
        try:
            with torch.inference_mode():
                outcome.set_result(self._stream.run(label, work))
        except BaseException as fault:  # delivered by wait(), as a stream does
            outcome.set_exception(fault)
        return _FakeEvent(self, self._free_at, outcome)

    def now(self) -> float:
        """The virtual clock in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let host time pass."""
        self._now += seconds

    def close(self) -> None:
        """Nothing is queued: work ran when it was submitted."""
