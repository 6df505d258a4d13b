"""The stream keeps order, delivers errors, and the fake one accounts overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from deepinfer_gen.runtime.device import CpuDevice, Device, FakeDevice


@pytest.fixture(params=["cpu", "fake"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    made: Device = CpuDevice() if request.param == "cpu" else FakeDevice({})
    yield made
    made.close()


def test_work_runs_in_order_and_returns_its_result(device: Device) -> None:
    seen: list[int] = []
    events = [device.submit("step", lambda i=i: seen.append(i) or i) for i in range(50)]
    assert [e.wait() for e in events] == list(range(50))
    assert seen == list(range(50))
    assert all(e.done() for e in events)


def test_work_runs_without_autograd(device: Device) -> None:
    assert device.submit("mode", torch.is_inference_mode_enabled).wait()


def test_an_error_is_delivered_and_stops_the_stream(device: Device) -> None:
    def fail() -> None:
        raise ValueError("block 7")

    ran: list[int] = []
    device.submit("copy", fail)
    later = device.submit("forward", lambda: ran.append(1))
    with pytest.raises(ValueError, match="block 7"):
        later.wait()
    assert not ran


def test_submitting_to_the_cpu_stream_does_not_block() -> None:
    device = CpuDevice()
    gate = threading.Event()
    event = device.submit("slow", gate.wait)
    assert not event.done()
    gate.set()
    assert event.wait()
    device.close()


def test_closing_finishes_what_is_queued_and_takes_no_more() -> None:
    device = CpuDevice()
    events = [device.submit("step", lambda i=i: i) for i in range(9)]
    device.close()
    assert [event.wait() for event in events] == list(range(9))
    with pytest.raises(RuntimeError, match="'late'"):
        device.submit("late", lambda: 0)


def test_host_work_hides_behind_the_stream() -> None:
    device = FakeDevice({"forward": 0.010, "sample": 0.002})
    device.submit("forward", lambda: None)
    sample = device.submit("sample", lambda: "tokens")
    device.advance(0.004)
    assert not sample.done()
    assert sample.wait() == "tokens"
    assert device.now() == pytest.approx(0.012)
    device.advance(0.005)
    device.submit("forward", lambda: None).wait()
    assert device.now() == pytest.approx(0.027)
    assert [label for label, _, _ in device.timeline] == ["forward", "sample", "forward"]
    assert device.timeline[2][1] == pytest.approx(0.017)
