"""Sampling parameters with vLLM's field names, order, defaults and validation.

A field that this engine does not support is accepted by name at its default and refused at construction otherwise:
nothing a user asks for is ignored.
"""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

logger = logging.getLogger(__name__)

GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 1e-2
_SEED_RANGE = (-(2**63), 2**64 - 1)
_MOST_BRANCHES = 16_384
"""vLLM's limit: a larger ``n`` is a slip, and its bookkeeping alone would fill the memory."""


class ParameterError(ValueError):
    """A request parameter is out of range or not supported; ``parameter`` and ``value`` say which."""

    def __init__(self, message: str, *, parameter: str, value: Any) -> None:
        super().__init__(f"{message} (parameter={parameter}, value={value!r})")
        self.parameter = parameter
        self.value = value


class RequestOutputKind(Enum):
    """What ``LLMEngine.step`` returns for a request: all text so far, only the new part, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class DefaultInt(int):
    """An integer that remembers that nobody wrote it: it marks a default that cut an output."""


DEFAULT_MAX_TOKENS = DefaultInt(16)

_NOT_BUILT = {
    "presence_penalty": "penalties are not supported by this engine",
    "frequency_penalty": "penalties are not supported by this engine",
    "repetition_penalty": "penalties are not supported by this engine",
    "watermarking": "there is no watermark in this engine",
    "prompt_logprobs": "prompt log probabilities are not supported by this engine",
    "prompt_logprob_token_ids": "prompt log probabilities are not supported by this engine",
    "prompt_logprob_start": "prompt log probabilities are not supported by this engine",
    "logprob_token_ids": "log probabilities of chosen tokens are not supported by this engine; use logprobs",
    "flat_logprobs": "log probabilities come as a list of dicts in this engine",
    "spaces_between_special_tokens": "special tokens are always separated by spaces in this engine",
    "stream_interval": "outputs come at every step in this engine",
    "skip_clone": "parameters are always copied",
    "structured_outputs": "structured output is not supported by this engine",
    "logit_bias": "logit biases are not supported by this engine",
    "allowed_token_ids": "token lists are not supported by this engine",
    "extra_args": "there are no plug-ins in this engine that would read it",
    "bad_words": "bad words are not supported by this engine",
    "skip_reading_prefix_cache": "there is no prefix cache in this engine",
    "thinking_token_budget": "thinking budgets are not supported by this engine",
    "repetition_detection": "repetition detection is not supported by this engine",
    "routed_experts_prompt_start": "routed experts are not returned by this engine",
    "trace_decode_token_ids": "forced tokens are not supported by this engine",
}


@dataclass(slots=True)
class SamplingParams:
    """How one request is sampled.

    ``temperature`` 0 is greedy; between 0 and 0.01 it is raised to 0.01, as in vLLM. ``max_tokens`` None runs to the
    engine's ``max_model_len``. ``seq_seed`` is another name of ``seed``.
    Raises ``ParameterError`` (a ``ValueError``) at construction.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    structured_outputs: Any = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    seq_seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._merge_seeds()
        self.stop = [self.stop] if isinstance(self.stop, str) else self._list("stop")
        self.stop_token_ids = self._list("stop_token_ids")
        self.bad_words = self.bad_words or None
        self.extra_args = self.extra_args or None
        if self.logprobs is True:
            self.logprobs = 1
        self._check_types()
        self._check_ranges()
        self._check_stops()
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids))
        self._refuse_unsupported()
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            logger.warning("temperature %s is raised to %s", self.temperature, LOWEST_TEMPERATURE)
            self.temperature = LOWEST_TEMPERATURE
        if self.greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without randomness."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` in its normal form."""
        return tuple(self.stop or ())

    @property
    def max_tokens_is_default(self) -> bool:
        """Whether the user wrote no ``max_tokens``."""
        return isinstance(self.max_tokens, DefaultInt)

    def clone(self, **changes: Any) -> SamplingParams:
        """A validated copy that shares nothing with this one; attributes set after construction are checked here."""
        if "seed" in changes:
            changes.setdefault("seq_seed", None)
        return replace(deepcopy(self), **changes)

    def _merge_seeds(self) -> None:
        if self.seed is not None and self.seq_seed is not None and self.seed != self.seq_seed:
            raise ParameterError(
                f"seed and seq_seed are two names of one parameter, got {self.seed} and {self.seq_seed}.",
                parameter="seq_seed",
                value=self.seq_seed,
            )
        if self.seed is None:
            self.seed = self.seq_seed
        self.seq_seed = None
        if self.seed == -1:
            self.seed = None

    def _list(self, name: str) -> list[Any]:
        value = getattr(self, name)
        if value is not None and not isinstance(value, (list, tuple, set, frozenset)):
            raise ParameterError(f"{name} must be a list, got {type(value).__name__}.", parameter=name, value=value)
        return list(value or ())

    def _check_types(self) -> None:
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ParameterError(f"{name} must be True or False, got {value!r}.", parameter=name, value=value)
        if not isinstance(self.output_kind, RequestOutputKind):
            raise ParameterError(
                f"output_kind must be a RequestOutputKind, got {self.output_kind!r}.",
                parameter="output_kind",
                value=self.output_kind,
            )

    def _check_ranges(self) -> None:
        self._integer("n", 1, _MOST_BRANCHES)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._number("repetition_penalty", 0.0, math.inf, open_low=True)
        self._number("temperature", 0.0, 2.0)
        self._number("top_p", 0.0, 1.0, open_low=True)
        self._integer("top_k", -1)
        self._number("min_p", 0.0, 1.0)
        self._integer("max_tokens", 1, optional=True)
        self._integer("min_tokens", 0)
        self._integer("logprobs", -1, optional=True)
        self._integer("seed", *_SEED_RANGE, optional=True)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}.",
                parameter="min_tokens",
                value=self.min_tokens,
            )
        if self.greedy and self.n > 1:
            raise ParameterError(f"n must be 1 when using greedy sampling, got {self.n}.", parameter="n", value=self.n)

    def _check_stops(self) -> None:
        if any(not isinstance(s, str) or not s for s in self.stop_strings):
            raise ParameterError("stop must hold non-empty strings.", parameter="stop", value=self.stop)
        if self.stop and not self.detokenize:
            raise ParameterError(
                "stop strings are only supported when detokenize is True.", parameter="stop", value=self.stop
            )
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in self.stop_token_ids or ()):
            raise ParameterError(
                "stop_token_ids must contain only non-negative integers.",
                parameter="stop_token_ids",
                value=self.stop_token_ids,
            )

    def _refuse_unsupported(self) -> None:
        for name, reason in _NOT_BUILT.items():
            value = getattr(self, name)
            if value is not None and value != _DEFAULTS[name]:
                raise ParameterError(f"{name} must keep its default: {reason}.", parameter=name, value=value)

    def _number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not numeric or not low <= value <= high or (open_low and value == low):
            interval = f"{'(' if open_low else '['}{low:g}, {high:g}]" if high < math.inf else f"above {low:g}"
            raise ParameterError(f"{name} must be in {interval} and finite, got {value}.", parameter=name, value=value)

    def _integer(self, name: str, low: int, high: int | None = None, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise ParameterError(f"{name} must be an integer, got {type(value).__name__}.", parameter=name, value=value)
        if value < low or (high is not None and value > high):
            bound = f"at least {low}" if high is None else f"in [{low}, {high}]"
            raise ParameterError(f"{name} must be {bound}, got {value}.", parameter=name, value=value)


_DEFAULTS = {f.name: f.default for f in fields(SamplingParams)}
