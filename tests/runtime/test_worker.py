"""How the worker uses its device, and what it refuses to replay."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scripted_model import continuation

from deepinfer_gen.runtime.device import FakeDevice
from deepinfer_gen.runtime.graphs import GraphError
from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_the_worker_queues_a_whole_step_before_it_waits(scripted: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice({"forward": 0.010, "sample": 0.002})
    engine = scripted.llm_engine
    monkeypatch.setattr(engine._worker, "_device", device)
    launched: list[float] = []
    monkeypatch.setattr(engine, "pre_sampler_sync", lambda step: launched.append(device.now()))
    (output,) = scripted.generate([5], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == continuation([5], 8)
    assert launched == pytest.approx([0.012 * step for step in range(8)])
    assert [label for label, _, _ in device.timeline if label != "zero_states"] == ["forward", "sample"] * 8


def test_the_scheduler_orders_cleared_states_before_their_use(scripted: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice({})
    monkeypatch.setattr(scripted.llm_engine._worker, "_device", device)
    scripted.generate([5], GREEDY.clone(max_tokens=1), use_tqdm=False)
    assert [label for label, _, _ in device.timeline] == ["zero_states", "forward", "sample"]


def test_a_graph_that_is_missing_stops_the_step(scripted: LLM) -> None:
    worker = scripted.llm_engine._worker
    step = SimpleNamespace(graph=3, total_q=3, input_ids=np.zeros(3), q_len=np.ones(3, np.int32))
    with pytest.raises(GraphError, match="belongs into graph 4, not 3"):
        worker.execute_model_step(step, [], lambda _: None)  # type: ignore[arg-type]
