"""Turns request state into output objects."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from deepinfer_gen.runtime.outputs import CompletionOutput, Logprob, RequestOutput, RequestStateStats
from deepinfer_gen.runtime.request import Finish, Request
from deepinfer_gen.runtime.sampler import RowLogprobs
from deepinfer_gen.runtime.sampling_params import RequestOutputKind
from deepinfer_gen.runtime.scheduler_core import Reason
from deepinfer_gen.runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class OutputBuilder:
    """Builds ``RequestOutput`` objects; warns once about outputs that a default cut and about each preempted one."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._token_texts: dict[int, str] = {}
        self._warned_of_default = False

    def add_logprobs(self, request: Request, row: RowLogprobs, token: int) -> None:
        """Append the log probabilities of one token: the chosen one first, then the most likely ones, best first."""
        entry = {token: Logprob(row.chosen, row.rank, self._token_text(request, token))}
        for rank, (token_id, logprob) in enumerate(zip(row.top_ids, row.top, strict=True), start=1):
            entry[token_id] = Logprob(logprob, rank, self._token_text(request, token_id))
        if request.logprobs is None:
            request.logprobs = []
        request.logprobs.append(entry)
        request.cumulative_logprob += row.chosen

    def running(self, request: Request) -> RequestOutput | None:
        """The output of a request that goes on; None when it wants only the end."""
        if request.params.output_kind == RequestOutputKind.FINAL_ONLY:
            return None
        return self._build([request])

    def ended(self, request: Request) -> RequestOutput | None:
        """The last output of a branch that ended; None while others go on and only the end of all is wanted."""
        if request.params.output_kind != RequestOutputKind.FINAL_ONLY:
            return self._build([request])
        family = request.family
        return self._build(family) if all(branch.ended for branch in family) else None

    def finish_of(self, request: Request, reason: Reason, stop_token: int) -> Finish:
        """vLLM's words for the scheduler's reason; a preempted request is an aborted one that says so."""
        if reason == Reason.STOP:
            is_eos = stop_token == self._eos_token_id and not request.params.ignore_eos
            return Finish("stop", None if is_eos else stop_token)
        if reason == Reason.LENGTH:
            self._warn_of_default(request)
            return Finish("length")
        if reason == Reason.PREEMPTED:
            logger.warning(
                "request %d was preempted after %d tokens because the cache was full; its output is incomplete",
                request.number,
                len(request.token_ids),
            )
            return Finish("abort", "preempted")
        return Finish("abort" if reason == Reason.ABORT else "error")

    def without_distribution(self, request: Request) -> Finish:
        """The end of a request whose next token has no distribution, since a logit is no finite number."""
        logger.warning(
            "request %d failed after %d tokens: the model's logits are not finite, so there is no next token",
            request.number,
            len(request.token_ids),
        )
        return Finish("error", "logits_not_finite")

    def _warn_of_default(self, request: Request) -> None:
        reached = len(request.token_ids) >= request.max_tokens
        if reached and request.params.max_tokens_is_default and not self._warned_of_default:
            self._warned_of_default = True
            logger.warning(
                "an output was cut at the default of max_tokens=%d; pass max_tokens=... to choose",
                request.params.max_tokens,
            )

    def _build(self, branches: Sequence[Request]) -> RequestOutput:
        request = branches[0]
        return RequestOutput(
            request_id=str(request.number),
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            prompt_logprobs=None,
            outputs=[_completion(branch) for branch in branches],
            finished=all(branch.ended for branch in request.family),
            metrics=_metrics(request.family),
            num_cached_tokens=0,
        )

    def _token_text(self, request: Request, token: int) -> str | None:
        if self._tokenizer is None or not request.params.detokenize:
            return None
        if token not in self._token_texts:
            self._token_texts[token] = self._tokenizer.decode(token)
        return self._token_texts[token]


def _completion(request: Request) -> CompletionOutput:
    finish = request.finish
    text = "" if request.text is None else request.text.read(final=finish is not None)
    token_ids, logprobs = list(request.token_ids), request.logprobs and list(request.logprobs)
    if request.params.output_kind == RequestOutputKind.DELTA:
        text, request.reported_characters = text[request.reported_characters :], len(text)
        token_ids = token_ids[request.reported_tokens :]
        logprobs = logprobs and logprobs[request.reported_tokens :]
        request.reported_tokens = len(request.token_ids)
    return CompletionOutput(
        index=request.branch,
        text=text,
        token_ids=token_ids,
        cumulative_logprob=None if request.logprobs is None else request.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=None if finish is None else finish.finish_reason,
        stop_reason=None if finish is None else finish.stop_reason,
    )


def _metrics(family: Sequence[Request]) -> RequestStateStats:
    """Of all branches together: the times of the first, the counts of all, the last token of any."""
    each = [branch.metrics for branch in family]
    return replace(
        each[0],
        num_generation_tokens=sum(m.num_generation_tokens for m in each),
        num_preemptions=sum(m.num_preemptions for m in each),
        last_token_ts=max(m.last_token_ts for m in each),
    )
