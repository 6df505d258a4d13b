"""The engine loop against a scripted scheduler: what no healthy engine shows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deepinfer_gen.runtime.engine import Capacity, EngineError, LLMEngine
from deepinfer_gen.runtime.group import LocalReducer
from deepinfer_gen.runtime.model.step_counts import StepCounts
from deepinfer_gen.runtime.output_builder import OutputBuilder
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.request import Request
from deepinfer_gen.runtime.sampler import Sampled
from deepinfer_gen.runtime.sampling_params import RequestOutputKind, SamplingParams
from deepinfer_gen.runtime.scheduler_core import Action, Reason, StepView
from deepinfer_gen.runtime.stats import EngineStats
from deepinfer_gen.runtime.worker import StepTokens

EOS = 1


class ScriptedCore:
    """Answers ``begin_step`` from a list; a decode step has one row for every request added."""

    def __init__(self, *actions: Action) -> None:
        self.actions = list(actions)
        self.ended: list[tuple[int, int, int]] = []
        self.ids: list[int] = []
        self.log: list[str] = []
        self.preempted: list[int] = []

    def add(self, id: int, prompt: Any, max_tokens: int, min_tokens: int, end_ids: Any) -> None:
        self.ids.append(id)
        self.log.append(f"add {max_tokens} {min_tokens} {end_ids.tolist()}")

    def begin_step(self, flags: Any) -> int:
        self.log.append(f"begin {None if flags is None else flags.tolist()}")
        return self.actions.pop(0)

    def vote(self) -> Any:
        return np.array([1, 0, 1, 0, 0, 0], np.int32)

    def resolve_vote(self, reduced: Any) -> int:
        self.log.append(f"resolve {reduced.tolist()}")
        return self.actions.pop(0)

    def flags(self) -> Any:
        return np.array([len(self.ids), 1, 0, 0, 0, 0], np.int32)

    def step(self) -> Any:
        empty = np.empty(0, np.int32)
        return SimpleNamespace(
            step_id=7, kind=Action.DECODE, num_rows=len(self.ids), total_q=len(self.ids), graph=8,
            ids=np.array(self.ids, np.uint64), preempted=np.array(self.preempted, np.uint64),
            samples=np.ones(len(self.ids), np.int32), clone_blocks=empty, clone_states=empty, zero_states=empty,
        )  # fmt: skip

    def commit(self, step_id: int, tokens: Any, counts: Any, confidences: Any) -> Any:
        self.log.append(f"commit {step_id} {tokens.tolist()} {confidences.shape}")
        reasons, emitted = np.zeros(len(counts), np.int32), counts.copy()
        for request_id, reason, _ in self.ended:
            row = self.ids.index(request_id)
            if reason in (Reason.STOP, Reason.LENGTH):
                reasons[row] = reason
            else:
                emitted[row] = 0
        return SimpleNamespace(ids=self.ids, emitted=emitted, reasons=reasons)

    def finish(self, id: int, reason: int) -> None:
        self.ended.append((id, reason, -1))

    def abort(self, id: int) -> None:
        self.finish(id, Reason.ABORT)

    def outcomes(self) -> Any:
        ended, self.ended = np.array(self.ended, np.int64).reshape(-1, 3), []
        return SimpleNamespace(ids=ended[:, 0], reasons=ended[:, 1], stop_tokens=ended[:, 2])

    def fail_reason(self) -> str:
        return "stalled: request 3 waits for blocks"


class ScriptedWorker:
    """Yields token 40 + row and records the order of the calls."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.fault: Exception | None = None

    def copy_state(self, step: StepView) -> None:
        self.log.append("copy_state")

    def execute_model_step(
        self, step: StepView, requests: list[Request], pre_sampler_sync: Callable[[StepView], None]
    ) -> StepTokens:
        if self.fault is not None:
            raise self.fault
        self.log.append("forward")
        pre_sampler_sync(step)
        self.log.append("sampled")
        rows = len(requests)
        tokens = np.arange(40, 40 + rows, dtype=np.int32)
        return StepTokens(tokens[:, None], np.ones(rows, np.int32), np.arange(rows), Sampled(tokens, {}), StepCounts())


def engine_with(core: ScriptedCore, kind: type[LLMEngine] = LLMEngine) -> LLMEngine:
    return kind(
        core,  # type: ignore[arg-type]
        ScriptedWorker(core.log),  # type: ignore[arg-type]
        OutputBuilder(None, EOS),
        EngineStats("test", lambda: 5.0, log=False),
        eos_token_id=EOS,
        capacity=Capacity(10, 4),
        reducer=LocalReducer(),
        votes=True,
        clock=lambda: 5.0,
    )


def add(engine: LLMEngine, number: int = 1, **params: Any) -> Request:
    made = Request(number, None, [2, 3], SamplingParams(**{"max_tokens": 9, **params}), 0, None)
    engine.add_request(made, max_tokens=9)
    return made


def only(outputs: list[RequestOutput]) -> RequestOutput:
    (output,) = outputs
    return output


def test_end_ids_go_to_the_scheduler() -> None:
    core = ScriptedCore()
    engine = engine_with(core)
    assert add(engine, 1, stop_token_ids=[6], min_tokens=2).barred_ids == (6, EOS)
    assert add(engine, 2, stop_token_ids=[6], ignore_eos=True).barred_ids == (6, EOS)
    add(engine, 3, stop_token_ids=[EOS])
    assert core.log == ["add 9 2 [6, 1]", "add 9 0 [6]", "add 9 0 [1]"]


def test_votes_are_reduced_and_flags_follow_the_next_step() -> None:
    core = ScriptedCore(Action.VOTE, Action.VOTE, Action.DECODE, Action.DONE, Action.DONE)
    engine = engine_with(core)
    add(engine)
    for _ in range(3):
        engine.step()
    assert [entry for entry in core.log if entry[:2] in ("be", "re")] == [
        "begin None", "resolve [1, 0, 1, 0, 0, 0]", "resolve [1, 0, 1, 0, 0, 0]",
        "begin [1, 1, 0, 0, 0, 0]", "begin None",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "stop_token", "finish", "stop"),
    [
        (Reason.STOP, EOS, "stop", None),
        (Reason.STOP, 6, "stop", 6),
        (Reason.LENGTH, -1, "length", None),
        (Reason.ABORT, -1, "abort", None),
        (Reason.ERROR, -1, "error", None),
        (Reason.PREEMPTED, -1, "abort", "preempted"),
    ],
)
def test_reasons_become_vllm_words(reason: Reason, stop_token: int, finish: str, stop: Any) -> None:
    core = ScriptedCore(Action.DECODE)
    engine = engine_with(core)
    add(engine)
    core.ended.append((1, reason, stop_token))
    completion = only(engine.step()).outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == (finish, stop)
    assert completion.token_ids == ([40] if reason in (Reason.STOP, Reason.LENGTH) else [])


def test_preemption_warns_and_counts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("deepinfer_gen"), "propagate", True)
    core = ScriptedCore(Action.DECODE, Action.DECODE)
    engine = engine_with(core)
    add(engine)
    core.preempted = [1]  # the first time it is computed again
    engine.step()
    core.ended.append((1, Reason.PREEMPTED, -1))
    assert only(engine.step()).metrics.num_preemptions == 2
    assert "request 1 was preempted after 1 tokens" in caplog.text


def test_a_failed_scheduler_ends_the_engine() -> None:
    engine = engine_with(ScriptedCore(Action.FAIL))
    add(engine)
    with pytest.raises(EngineError, match="request 3 waits for blocks"):
        engine.step()
    with pytest.raises(EngineError, match="earlier error"):
        engine.step()
    with pytest.raises(EngineError, match="earlier error"):
        add(engine, 2)


def test_an_error_of_the_model_comes_through_and_ends_the_engine() -> None:
    engine = engine_with(ScriptedCore(Action.DECODE))
    engine._worker.fault = ValueError("bad row")  # type: ignore[attr-defined]
    add(engine)
    with pytest.raises(ValueError, match="bad row"):
        engine.step()
    with pytest.raises(EngineError, match="ValueError: bad row"):
        engine.step()


def test_idle_backs_off_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("time.sleep", naps.append)
    engine = engine_with(ScriptedCore(*[Action.IDLE] * 8, Action.DECODE, Action.IDLE))
    add(engine)
    for _ in range(10):
        engine.step()
    assert naps == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.001]


def test_output_kinds() -> None:
    core = ScriptedCore(*[Action.DECODE] * 3)
    engine = engine_with(core)
    for number, kind in enumerate(RequestOutputKind, start=1):
        add(engine, number, output_kind=kind)
    first, second = engine.step(), engine.step()
    core.ended += [(n, Reason.LENGTH, -1) for n in (1, 2, 3)]
    seen = [[(o.request_id, o.outputs[0].token_ids) for o in outputs] for outputs in (first, second, engine.step())]
    assert seen == [
        [("1", [40]), ("2", [41])],
        [("1", [40, 40]), ("2", [41])],
        [("1", [40] * 3), ("2", [41]), ("3", [42] * 3)],
    ]


class Hooked(LLMEngine):
    """Records every hook."""

    copies = True

    def __init__(self, core: ScriptedCore, *rest: Any, **named: Any) -> None:
        self.log = core.log
        super().__init__(core, *rest, **named)  # type: ignore[arg-type]

    def should_copy_state(self, step: StepView) -> bool:
        return self.copies


for name in (
    "init_pd_split",
    "pe_prepare_save_kvcache",
    "do_save_kvcache",
    "pe_do_save_kvcache",
    "send_processed_prompts",
):
    setattr(Hooked, name, lambda self, *_, name=name: self.log.append(name))


def test_hooks_stand_at_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ScriptedCore(Action.DECODE, Action.PREFILL, Action.DECODE)
    engine = engine_with(core, Hooked)
    assert core.log.pop(0) == "init_pd_split"
    add(engine)
    core.log.clear()
    engine.step()
    assert core.log == ["begin None", "copy_state", "forward", "do_save_kvcache", "sampled", "commit 7 [[40]] (1, 0)"]
    core.log.clear()
    monkeypatch.setattr(Hooked, "copies", False)
    prefill = core.step()
    prefill.kind = Action.PREFILL
    monkeypatch.setattr(core, "step", lambda: prefill)
    engine.step()
    assert core.log[1:] == [
        "pe_prepare_save_kvcache", "forward", "sampled", "pe_do_save_kvcache", "commit 7 [[40]] (1, 0)",
        "send_processed_prompts",
    ]  # fmt: skip
