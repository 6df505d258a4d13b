"""What the engine returns: vLLM's output objects, with metrics that are always filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Logprob:
    """Log probability of one token of the raw distribution; ``rank`` counts from 1."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class RequestStateStats:
    """Times and counts of one request.

    ``arrival_time`` is wall-clock seconds, the other ``*_ts`` are monotonic seconds (0 before they happen);
    ``first_token_latency`` is seconds from arrival to the first token.
    """

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a request.

    ``finish_reason`` is ``stop``, ``length``, ``abort``, ``error`` or None while it runs. ``stop_reason`` is the stop
    string or stop token id that ended it, None for the end token, ``preempted`` when the cache ran out,
    ``logits_not_finite`` when the model gave no distribution. ``logprobs`` holds one dict ``{token_id: Logprob}`` per
    token. The attributes after ``stop_reason`` are always None here.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    routed_experts: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    sampling_mask: Any = None
    spec_decode_metrics: Any = None
    weight_versions: Any = None

    def finished(self) -> bool:
        """Whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One request with its completions; ``num_cached_tokens`` is 0 because there is no prefix cache.

    The attributes after ``num_cached_tokens`` are always None here.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats
    lora_request: Any = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    num_cache_creation_tokens: int | None = None
    prompt_token_id_logprobs: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
