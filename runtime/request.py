"""One request while it is in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time

from deepinfer_gen.runtime.outputs import Logprob, RequestStateStats
from deepinfer_gen.runtime.request_text import RequestText
from deepinfer_gen.runtime.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended: vLLM's ``finish_reason`` and ``stop_reason``."""

    finish_reason: str
    stop_reason: int | str | None = None


@dataclass(slots=True, eq=False)
class Request:
    """State of one branch of a caller's request between steps; with ``n`` = 1 there is one branch.

    ``number`` is the caller's, ``id`` the scheduler's, which the engine gives out: each branch has its own. ``family``
    holds all branches in order.
    ``barred_ids`` are the token ids that may not come before ``min_tokens``; ``rounds`` counts the sampling rounds
    drawn so far, part of the key of its random numbers like ``branch``; ``text`` is None when nothing is detokenised.
    """

    number: int
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    text: RequestText | None
    branch: int = 0
    family: list[Request] = field(default_factory=list, repr=False)
    id: int = 0
    max_tokens: int = 0
    barred_ids: tuple[int, ...] = ()
    metrics: RequestStateStats = field(default_factory=lambda: RequestStateStats(arrival_time=time()))
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float = 0.0
    rounds: int = 0
    reported_tokens: int = 0
    reported_characters: int = 0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.family.append(self)

    @property
    def ended(self) -> bool:
        """Whether this branch has ended."""
        return self.finish is not None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    def next_round(self) -> int:
        """The number of the sampling round about to be drawn; each is handed out once."""
        self.rounds += 1
        return self.rounds - 1

    def append(self, tokens: Sequence[int], now: float, *, end_token: bool) -> str | None:
        """Take newly committed tokens; returns the stop string they complete, behind which no token is kept.

        ``end_token`` says that the last one ended the request; it is no part of the text unless stops are included.
        """
        metrics = self.metrics
        if not self.token_ids:
            metrics.first_token_ts = now
            metrics.first_token_latency = now - metrics.queued_ts
        metrics.last_token_ts = now
        silent = len(tokens) - 1 if end_token and not self.params.include_stop_str_in_output else len(tokens)
        stop = None
        for index, token in enumerate(tokens):
            self.token_ids.append(token)
            if self.text is not None and index < silent:
                stop = self.text.append(token, stoppable=len(self.token_ids) > self.params.min_tokens)
                if stop is not None:
                    break
        metrics.num_generation_tokens = len(self.token_ids)
        return stop
