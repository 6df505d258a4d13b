"""The calls of a scheduler; each checks its arguments before it changes anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference.admission import make_request
from reference.commit import check_results, commit
from reference.config import COMPLETION, NORMAL, PROMPT, Config
from reference.estimators import monotone
from reference.execution import Execution
from reference.forks import fork
from reference.records import ABORT, ERROR, Committed, Decision, Int32, Outcomes, Step
from reference.requests import Request, Stage
from reference.requests import Sequence as Place
from reference.state import State
from reference.step_policies import CompletionSteps, NormalSteps, PromptSteps, StepPolicy
from reference.verification import FixedVerification, VarlenVerification, split, survivals

_POLICIES: dict[str, type[NormalSteps | PromptSteps | CompletionSteps]] = {
    NORMAL: NormalSteps,
    PROMPT: PromptSteps,
    COMPLETION: CompletionSteps,
}


def _integers(values: ArrayLike) -> list[int]:
    return [int(value) for value in np.asarray(values).reshape(-1)]


class Scheduler:
    """One rank. ``constants`` is what the extension module's ``constants()`` returns."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.config = Config.from_constants(constants)
        self.state = State(self.config)
        self.verification = VarlenVerification(self.config) if self.config.varlen else FixedVerification(self.config)
        self.execution = Execution(self.state, self.verification)
        self.steps: StepPolicy = _POLICIES[self.config.engine_type](self.execution)

    # Requests

    def add(
        self,
        id: int,
        prompt: ArrayLike,
        max_tokens: int,
        min_tokens: int,
        end_ids: ArrayLike,
        checkpoints: ArrayLike = (),
        image_spans: ArrayLike = (),
    ) -> None:
        """Queue a request for prefill."""
        if self.config.engine_type == COMPLETION:
            raise ValueError("add: this engine has no prefill")
        spans = _integers(image_spans)
        request = make_request(
            self.config,
            request_id=id,
            tokens=_integers(prompt),
            prompt_length=len(_integers(prompt)),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            end_ids=_integers(end_ids),
            checkpoints=_integers(checkpoints),
            spans=list(zip(spans[::2], spans[1::2], strict=True)),
        )
        self._check_new(id)
        self.state.requests[id] = request
        self.state.prefill_queue.append(request)

    def add_prompted(
        self, id: int, tokens: ArrayLike, prompt_length: int, max_tokens: int, min_tokens: int, end_ids: ArrayLike
    ) -> None:
        """Queue a request whose cache another engine computed."""
        if self.config.engine_type == PROMPT:
            raise ValueError("add_prompted: this engine does not decode")
        if prompt_length >= len(_integers(tokens)):
            raise ValueError(f"add_prompted: request {id} has no output token, which its prefill has sampled")
        request = make_request(
            self.config,
            request_id=id,
            tokens=_integers(tokens),
            prompt_length=prompt_length,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            end_ids=_integers(end_ids),
        )
        self._check_new(id)
        self.state.requests[id] = request
        self.state.incoming.append(request)

    def _check_new(self, id: int) -> None:
        if id in self.state.requests or id in self.state.draining:
            raise ValueError(f"request {id} is known already")

    def fork(self, parent: int, children: ArrayLike) -> None:
        ids = _integers(children)
        if self.config.engine_type == PROMPT:
            raise ValueError("fork: this engine does not decode")
        request = self._request(parent)
        if len(set(ids)) < len(ids):
            raise ValueError(f"fork: an id occurs twice in {ids}")
        for child in ids:
            self._check_new(child)
        fork(self.state, request, ids)

    def pause(self, id: int) -> None:
        self._request(id).paused = True

    def resume(self, id: int) -> None:
        self._request(id).paused = False

    def begin_transfer(self, id: int) -> None:
        sequence = self._place(self._request(id))
        if sequence.transfer:
            raise ValueError(f"begin_transfer: request {id} has one open")
        sequence.transfer = True

    def end_transfer(self, id: int) -> None:
        """Also of a request whose end was handed out: its place drains until now."""
        sequence = self.state.draining.get(id) or self._place(self._request(id))
        if not sequence.transfer:
            raise ValueError(f"end_transfer: request {id} has none open")
        sequence.transfer = False
        if sequence.stage is Stage.LOADING:
            self.state.become_prompted(sequence)
        elif sequence.stage is Stage.DRAINING:
            del self.state.draining[id]
            self.state.close_place(sequence)

    def blocks(self, id: int) -> Int32:
        return np.array(self._place(self._request(id)).blocks, np.int32)

    def slot(self, id: int) -> int:
        return self._place(self._request(id)).slot

    def abort(self, id: int) -> None:
        self.finish(id, ABORT)

    def finish(self, id: int, reason: int) -> None:
        request = self._request(id)
        if not 1 <= reason <= ERROR:
            raise ValueError(f"finish: reason {reason} of request {id}")
        if not request.reason:
            self.state.end(request, reason)

    def _request(self, id: int) -> Request:
        """ValueError for one that never came, or whose end was handed out."""
        if id not in self.state.requests:
            raise ValueError(f"request {id} is not known")
        return self.state.requests[id]

    def _place(self, request: Request) -> Place:
        """ValueError for one that waits, or that has ended, even if its place drains."""
        if request.sequence is None or request.reason:
            raise ValueError(f"request {request.id} has no cache")
        return request.sequence

    # What the caller says

    def set_pending(self, pending: bool) -> None:
        self.state.said_pending = pending

    def set_error(self, message: str) -> None:
        self.state.error = message

    def set_cost_curve(self, milliseconds: ArrayLike) -> None:
        values = [float(value) for value in np.asarray(milliseconds, np.float64)]
        if not isinstance(self.verification, VarlenVerification):
            raise ValueError("set_cost_curve: this engine has no varlen verification")
        if len(values) != len(self.config.graph_sizes) or not monotone(values) or not all(v > 0 for v in values):
            raise ValueError(f"set_cost_curve: {values}")
        self.verification.curve = dict(zip(self.config.graph_sizes, values, strict=True))

    def observe(self, graph: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        if not isinstance(self.verification, VarlenVerification) or not self.verification.curve:
            raise ValueError("observe: this engine has no cost curve")
        known = graph in self.config.graph_sizes and 0 <= rows <= min(graph, self.config.max_num_seqs)
        if not known or not all(math.isfinite(ms) and ms >= 0 for ms in (forward_ms, sampler_ms)):
            raise ValueError(f"observe: graph {graph}, rows {rows}, {forward_ms} ms, {sampler_ms} ms")
        self.verification.estimators.observe(self.verification.curve, graph, rows, forward_ms, sampler_ms)

    def split(self, caps: ArrayLike, confidences: NDArray[np.uint16], total: int) -> Int32:
        """What the device computes in a provisional step."""
        limits = _integers(caps)
        if confidences.shape != (len(limits), self.config.nextn) or not all(
            0 <= c <= self.config.nextn for c in limits
        ):
            raise ValueError(f"split: caps {limits}, confidences of shape {confidences.shape}")
        if not len(limits) <= total <= len(limits) + sum(limits):
            raise ValueError(f"split: a total of {total} for caps {limits}")
        survival = [survivals(cap, _integers(row)) for cap, row in zip(limits, confidences, strict=True)]
        return np.array(split(limits, survival, total), np.int32)

    # Steps

    def begin_step(self, flags: Sequence[int] | Int32 | None) -> int:
        frames = self.state.frames
        if self.steps.vote is not None:
            raise ValueError("begin_step: the vote of this step is not resolved")
        if len(frames) == 2 or (frames and not frames[0].decode):
            raise ValueError("begin_step: a step must be committed before")
        record = None if flags is None else _integers(flags)
        if record is not None and len(record) != 6:
            raise ValueError(f"begin_step: flags are {record}")
        self.execution.begin(record)
        return self.steps.begin(record)

    def vote(self) -> Int32:
        if self.steps.vote is None:
            raise ValueError("vote: this step has none")
        return np.array(self.steps.vote, np.int32)

    def resolve_vote(self, reduced: ArrayLike) -> int:
        if self.steps.vote is None:
            raise ValueError("resolve_vote: this step has no vote")
        return self.steps.resolve(_integers(reduced))

    def flags(self) -> Int32:
        """Decodable, unfinished, pending, error, work, graph."""
        state, graph = self.state, 0
        if self.config.padded:
            wanted = self.verification.request(len(state.running) + len(state.prompted))
            graph = self.config.graph_sizes[self.config.graph_index(wanted)]
        values = (state.decodable(), state.unfinished(), state.pending(), bool(state.error), self.steps.work(), graph)
        return np.array([int(value) for value in values], np.int32)

    def decision(self) -> Decision:
        return self.steps.decision

    def step(self) -> Step:
        if self.execution.step is None:
            raise ValueError("step: none was scheduled")
        return self.execution.step

    def commit(self, step_id: int, tokens: Int32, counts: Int32, confidences: NDArray[np.uint16]) -> Committed:
        frame = check_results(self.state, step_id, tokens, counts, confidences)
        return commit(self.state, frame, tokens, counts, confidences)

    def outcomes(self) -> Outcomes:
        ended, self.state.ended = self.state.ended, []
        for id, _, _ in ended:
            del self.state.requests[id]
        ids, reasons, stops = ([item[i] for item in ended] for i in range(3))
        return Outcomes(np.array(ids, np.uint64), np.array(reasons, np.int32), np.array(stops, np.int32))

    def fail_reason(self) -> str:
        return self.execution.fail_reason
