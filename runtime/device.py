"""What runs a step's work: one in-order stream with events.

The host submits work and waits only where it needs a result, so it can prepare the next thing meanwhile. The CPU form
runs the stream on a worker thread. The fake form runs the work at once but accounts given latencies on a virtual
clock, so that overlap and ordering are tested without hardware or sleeping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import torch

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
        """Run one piece of work; autograd modes are per thread, so the stream sets its own."""
        if self._fault is not None:
            raise self._fault
        try:
            with torch.inference_mode(), torch.profiler.record_function(label):
                return work()
        except BaseException as fault:
            self._fault = fault
            raise


class _CpuEvent(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether the work has finished by now."""
        return self._future.done()

    def wait(self) -> T:
        """Block until it has, then return its result or raise its error."""
        return self._future.result()


class CpuDevice:
    """The stream is one worker thread."""

    name = "cpu"

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="deepinfer-stream")
        self._stream = _Stream()

    def submit(self, label: str, work: Callable[[], T]) -> Event[T]:
        """Queue ``work``; ``label`` names it in a profile."""
        return _CpuEvent(self._thread.submit(self._stream.run, label, work))

    def now(self) -> float:
        """``time.monotonic``."""
        return time.monotonic()

    def close(self) -> None:
        """Finish the queued work and stop the thread."""
        self._thread.shutdown(wait=True)


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
