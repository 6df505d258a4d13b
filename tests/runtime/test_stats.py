"""Counts, the stats line and histograms."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from deepinfer_gen.runtime.metrics import Observations
from deepinfer_gen.runtime.outputs import RequestStateStats
from deepinfer_gen.runtime.scheduler_core import Action
from deepinfer_gen.runtime.stats import EngineStats, Load

LOAD = Load(running=3, waiting=2, cache_usage=0.25, slot_usage=0.5)


def step(kind: Action, total_q: int, graph: int = 0, preempted: int = 0) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, total_q=total_q, graph=graph, preempted=np.zeros(preempted))


def test_the_stats_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("deepinfer_gen"), "propagate", True)
    now = [100.0]
    stats = EngineStats("e", lambda: now[0], log=True)
    with caplog.at_level(logging.INFO, "deepinfer_gen"):
        stats.record_step(step(Action.PREFILL, 300))
        stats.record_step(step(Action.DECODE, 3, 4))
        stats.record_step(step(Action.DECODE, 6, 8, preempted=1))
        stats.record_tokens(10)
        now[0] = 109.0
        stats.maybe_log(lambda: LOAD)
        assert not caplog.messages
        now[0] = 120.0
        stats.maybe_log(lambda: LOAD)
        now[0] = 140.0
        stats.maybe_log(lambda: LOAD)
    assert caplog.messages[0] == (
        "Avg prompt throughput: 15.0 tokens/s, Avg generation throughput: 0.5 tokens/s, Running: 3 reqs, "
        "Waiting: 2 reqs, Preemptions: 1, KV cache usage: 25.0%, Prefix cache hit rate: 0.0%, State slots used: 50.0%, "
        "Steps: P 1 / D 2, Graphs: {4: 1, 8: 1}, Padding waste: 25.0%"
    )
    assert "Steps: P 0 / D 0" in caplog.messages[1]
    assert stats.total.prompt_tokens == 300


def test_no_line_when_stats_are_off(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    stats = EngineStats("e", lambda: now[0], log=False)
    now[0] = 99.0
    with caplog.at_level(logging.INFO):
        stats.maybe_log(lambda: LOAD)
    assert not caplog.messages


def test_request_times() -> None:
    stats = EngineStats("e", lambda: 0.0, log=False)
    times = RequestStateStats(
        num_generation_tokens=5,
        queued_ts=1.0,
        scheduled_ts=1.5,
        first_token_ts=2.0,
        last_token_ts=4.0,
        first_token_latency=1.0,
    )
    stats.record_finished(times, "stop", 4.0)
    stats.record_finished(RequestStateStats(queued_ts=3.0), "abort", 4.0)
    found = {m.name.removeprefix("deepinfer:"): m for m in stats.metrics(LOAD)}
    sums = {name: (m.count, m.sum) for name, m in found.items() if hasattr(m, "sum") and m.count}
    assert sums == {
        "time_to_first_token_seconds": (1, 1.0),
        "request_time_per_output_token_seconds": (1, 0.5),
        "e2e_request_latency_seconds": (2, 4.0),
        "request_queue_time_seconds": (1, 0.5),
        "request_prefill_time_seconds": (1, 0.5),
        "request_decode_time_seconds": (1, 2.0),
    }
    reasons = [
        (m.labels["finished_reason"], m.value) for m in stats.metrics(LOAD) if m.name.endswith("request_success")
    ]
    assert reasons == [("abort", 1), ("stop", 1)]


def test_histogram_buckets_are_cumulative_and_closed_above() -> None:
    seen = Observations((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        seen.add(value)
    seen.add(2.0, times=2)
    assert seen.snapshot("n", {}).buckets == {"1.0": 2, "2.0": 5, "+Inf": 6}
    assert seen.snapshot("n", {}).sum == 16.0
