"""The engine: queues requests in the compiled scheduler, executes its steps, and turns tokens into outputs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer_gen.runtime.group import Reducer, Reduction
from deepinfer_gen.runtime.output_builder import OutputBuilder
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.request import Finish, Request
from deepinfer_gen.runtime.scheduler_core import Action, CommittedView, Reason, SchedulerCore, StepView
from deepinfer_gen.runtime.stats import EngineStats, Load
from deepinfer_gen.runtime.trace import TraceWriter
from deepinfer_gen.runtime.worker import StepTokens, Worker

_FIRST_BACKOFF = 0.001
_LONGEST_BACKOFF = 0.05
_CONFIDENCES_PER_ROW = 0


class EngineError(RuntimeError):
    """The engine cannot go on; the message says in which step and why."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Cache blocks and state slots that sequences can have, without the reserved ones."""

    blocks: int
    slots: int


class LLMEngine:
    """One rank's engine. ``step`` runs one scheduled step and returns the outputs it produced.

    ``votes`` tells how the scheduler of this engine type agrees with its group: by votes, or only by the record of each
    step, which is then exchanged after idle calls too.

    The methods from ``init_pd_split`` to ``pre_sampler_sync`` are hooks for engines that hand caches to others; they
    do nothing here.
    """

    def __init__(
        self,
        core: SchedulerCore,
        worker: Worker,
        outputs: OutputBuilder,
        stats: EngineStats,
        *,
        eos_token_id: int,
        capacity: Capacity,
        reducer: Reducer,
        votes: bool,
        clock: Callable[[], float],
        trace: TraceWriter | None = None,
    ) -> None:
        self._core = core
        self._worker = worker
        self._outputs = outputs
        self._eos_token_id = eos_token_id
        self._capacity = capacity
        self._reducer = reducer
        self._votes = votes
        self._clock = clock
        self._trace = trace
        self._requests: dict[int, Request] = {}  # by the scheduler's id: branches that it knows
        self._branch_ids = itertools.count(np.iinfo(np.uint64).max, -1)  # far from the callers' numbers
        self._families: dict[int, Request] = {}  # by the caller's number: the first branch of each
        self._ends: dict[int, Finish] = {}  # by the scheduler's id: why branches end that were ended from here
        self._published: Reduction | None = None
        self._backoff = _FIRST_BACKOFF
        self._fault: str | None = None
        self._process = os.getpid()
        self.stats = stats
        self.init_pd_split()

    # Hooks, in the order in which a step reaches them.

    def init_pd_split(self) -> None:
        """Called once, when the engine is complete."""

    def should_copy_state(self, step: StepView) -> bool:
        """Whether this step's block copies, state copies and clearings are executed by this engine."""
        return True

    def pe_prepare_save_kvcache(self, step: StepView) -> None:
        """Called before the forward pass of a prefill step."""

    def pre_sampler_sync(self, step: StepView) -> None:
        """Called when forward and sampling are launched and nothing has been waited for yet."""
        if step.kind == Action.DECODE:
            self.do_save_kvcache(step)

    def do_save_kvcache(self, step: StepView) -> None:
        """Called while a decode step runs."""

    def pe_do_save_kvcache(self, step: StepView) -> None:
        """Called when a prefill step has run, before its requests may end."""

    def send_processed_prompts(self, step: StepView) -> None:
        """Called when the tokens of a prefill step have been delivered."""

    # Requests

    def add_request(self, request: Request, *, max_tokens: int) -> None:
        """Queue ``request``; raises ``ValueError`` from the scheduler, with the values, if it can never fit.

        It is the first of its family. The other branches share its prompt's cache once that is computed.
        """
        self._check_alive()
        now = self._clock()
        for branch in request.family:
            branch.id = next(self._branch_ids) if branch.branch else request.number
            branch.max_tokens = max_tokens
            branch.metrics.queued_ts = now
        self._enter(request)
        self._families[request.number] = request

    def _enter(self, request: Request) -> None:
        params = request.params
        stops = tuple(params.stop_token_ids or ())
        with_eos = tuple(dict.fromkeys((*stops, self._eos_token_id)))
        ends = stops if params.ignore_eos else with_eos
        self._core.add(
            request.id,
            np.asarray(request.prompt_token_ids, np.int32),
            request.max_tokens,
            params.min_tokens,
            np.asarray(ends, np.int32),
        )
        for branch in request.family:
            branch.barred_ids = with_eos
        self._requests[request.id] = request

    def abort_request(self, numbers: Iterable[int]) -> list[RequestOutput]:
        """End requests; those that already ended are left alone. Returns their last outputs."""
        for number in numbers:
            if number in self._families:
                for branch in self._families[number].family:
                    if branch.id in self._requests:
                        self._core.abort(branch.id)
        return self._collect_ended()

    def abort_all(self) -> list[RequestOutput]:
        """End every request."""
        return self.abort_request(self.unfinished_requests())

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._families)

    def is_unfinished(self, numbers: Iterable[int]) -> bool:
        """Whether any of these requests has not ended."""
        return any(number in self._families for number in numbers)

    def unfinished_requests(self) -> list[int]:
        """Numbers of the requests that have not ended, in the order in which they came."""
        return list(self._families)

    def load(self) -> Load:
        """How full the engine is."""
        counts = self._core.stats()
        return Load(
            running=counts["partial"] + counts["loading"] + counts["prompted"] + counts["running"],
            waiting=counts["waiting"] + counts["incoming"],
            cache_usage=1.0 - counts["free_blocks"] / self._capacity.blocks,
            slot_usage=1.0 - counts["free_slots"] / self._capacity.slots,
        )

    # Steps

    def step(self) -> list[RequestOutput]:
        """Run one step: schedule, copy state, forward, sample, commit. Returns the outputs that are due.

        Raises ``EngineError`` when the scheduler gives up, and lets errors of the model through; after either the
        engine refuses all work.
        """
        self._check_alive()
        try:
            return self._step()
        except BaseException as fault:
            self._fault = f"{type(fault).__name__}: {fault}"
            raise

    def _step(self) -> list[RequestOutput]:
        action = self._schedule()
        if action in (Action.PREFILL, Action.DECODE):
            self._backoff = _FIRST_BACKOFF
            return self._execute(self._core.step())
        if action == Action.FAIL:
            raise EngineError(f"the scheduler stopped: {self._core.fail_reason()}")
        outputs = self._collect_ended()
        if action == Action.IDLE and not outputs:
            time.sleep(self._backoff)
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)
        return outputs

    def _schedule(self) -> Action:
        flags = self._published.wait() if self._published is not None else None
        self._published = None
        action = self._core.begin_step(flags)
        while action == Action.VOTE:
            action = self._core.resolve_vote(self._reducer.start(self._core.vote).wait())
        if action in (Action.PREFILL, Action.DECODE) or (action == Action.IDLE and not self._votes):
            self._published = self._reducer.start(self._core.flags)
        return Action(action)

    def _execute(self, step: StepView) -> list[RequestOutput]:
        self.stats.record_step(step)
        for request_id in step.preempted.tolist():
            self._requests[request_id].metrics.num_preemptions += 1
        if self.should_copy_state(step):
            self._worker.copy_state(step)
        requests = [self._requests[i] for i in step.ids[: step.num_rows].tolist()]
        prefill = step.kind == Action.PREFILL
        if prefill:
            self._mark_scheduled(requests)
            self.pe_prepare_save_kvcache(step)
        result = self._worker.execute_model_step(step, requests, self.pre_sampler_sync)
        if self._trace is not None:
            self._trace.write(step, result.work)
        if prefill:
            self.pe_do_save_kvcache(step)
            self._fork(requests, step.samples.tolist())
        outputs = self._post_process(step, requests, result)
        if prefill:
            self.send_processed_prompts(step)
        self.stats.maybe_log(self.load)
        return outputs

    def _mark_scheduled(self, requests: Sequence[Request]) -> None:
        now = self._clock()
        for request in requests:
            request.metrics.scheduled_ts = request.metrics.scheduled_ts or now

    def _fork(self, requests: Sequence[Request], samples: Sequence[int]) -> None:
        """Let the branches of prompts that are complete begin, before their first token is committed.

        Branches for which no place is free wait like new requests and compute the prompt again.
        """
        for request, complete in zip(requests, samples, strict=True):
            unborn = [b for b in request.family if not b.ended and b.id not in self._requests]
            if not complete or not unborn:
                continue
            free = self._core.stats()["free_places"]
            born, late = unborn[:free], unborn[free:]
            if born:
                self._core.fork(request.id, np.array([branch.id for branch in born], np.uint64))
            for branch in born:
                self._requests[branch.id] = branch
                branch.metrics.scheduled_ts = request.metrics.scheduled_ts
            for branch in late:
                self._enter(branch)

    def _post_process(self, step: StepView, requests: Sequence[Request], result: StepTokens) -> list[RequestOutput]:
        """Commit a step's tokens, give each request those that became output, and end what has to end."""
        confidences = np.zeros((step.num_rows, _CONFIDENCES_PER_ROW), np.uint16)
        for index in result.sampled.failed:
            request = requests[result.sampled_rows[index]]
            self._core.finish(request.id, Reason.ERROR)
            self._ends[request.id] = self._outputs.without_distribution(request)
        committed = self._core.commit(step.step_id, result.tokens, result.counts, confidences)
        for index, logprobs in result.sampled.logprobs.items():
            row = result.sampled_rows[index]
            if committed.emitted[row]:
                self._outputs.add_logprobs(requests[row], logprobs, int(result.tokens[row, 0]))
        outputs = self._deliver(requests, committed, result)
        return outputs + self._collect_ended()

    def _deliver(
        self, requests: Sequence[Request], committed: CommittedView, result: StepTokens
    ) -> list[RequestOutput]:
        now = self._clock()
        outputs: list[RequestOutput] = []
        emitted, reasons = committed.emitted.tolist(), committed.reasons.tolist()
        for request, count, reason, tokens in zip(requests, emitted, reasons, result.tokens.tolist(), strict=True):
            if not count:
                continue
            if request.token_ids:
                self.stats.record_gap(now - request.metrics.last_token_ts, count)
            stop = request.append(tokens[:count], now, end_token=reason == Reason.STOP)
            if stop is not None and not reason:
                self._core.finish(request.id, Reason.STOP)
            if stop is not None:
                self._ends[request.id] = Finish("stop", stop)
            if not reason and stop is None:
                output = self._outputs.running(request)
                if output is not None:
                    outputs.append(output)
        self.stats.record_tokens(sum(emitted))
        return outputs

    def _collect_ended(self) -> list[RequestOutput]:
        """The last output of every request that ended since the last call."""
        ended = self._core.outcomes()
        columns = zip(ended.ids.tolist(), ended.reasons.tolist(), ended.stop_tokens.tolist(), strict=True)
        outputs = []
        for request_id, reason, stop_token in columns:
            request = self._requests.pop(request_id)
            own = self._ends.pop(request_id, None)
            request.finish = own or self._outputs.finish_of(request, Reason(reason), stop_token)
            # Branches that never began end with the prompt that they waited for.
            unborn = [b for b in request.family if not b.ended and b.id not in self._requests]
            for branch in (request, *unborn):
                branch.finish = request.finish
                self.stats.record_finished(branch.metrics, request.finish.finish_reason, self._clock())
                output = self._outputs.ended(branch)
                if output is not None:
                    outputs.append(output)
            if all(branch.ended for branch in request.family):
                del self._families[request.number]
        return outputs

    def _check_alive(self) -> None:
        if os.getpid() != self._process:
            raise EngineError(
                f"the engine belongs to process {self._process} and its threads do not survive a fork;"
                " make one in the child"
            )
        if self._fault is not None:
            raise EngineError(f"the engine stopped at an earlier error ({self._fault}); make a new one")
