"""Which requests are refused when they come, because they could never be served."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from reference.config import PROMPT, Config
from reference.requests import Request

Spans = Sequence[tuple[int, int]]


def make_request(
    config: Config,
    *,
    request_id: int,
    tokens: list[int],
    prompt_length: int,
    max_tokens: int,
    min_tokens: int,
    end_ids: Sequence[int],
    checkpoints: Sequence[int] = (),
    spans: Spans = (),
) -> Request:
    """ValueError, with the values, for what never fits."""
    if not 1 <= prompt_length <= len(tokens):
        raise ValueError(f"request {request_id}: a prompt of {prompt_length} tokens, of {len(tokens)} in all")
    if max_tokens < 1 or not 0 <= min_tokens <= max_tokens:
        raise ValueError(f"request {request_id}: max_tokens {max_tokens}, min_tokens {min_tokens}")
    if any(token < 0 for token in tokens):
        raise ValueError(f"request {request_id}: a token is below 0")
    prompt_only = config.engine_type == PROMPT
    limit = prompt_length + 1 if prompt_only else min(prompt_length + max_tokens, config.max_model_len)
    if len(tokens) >= min(limit, config.max_model_len):
        raise ValueError(f"request {request_id}: {len(tokens)} tokens leave nothing to do within {limit}")
    _check_checkpoints(request_id, prompt_length, checkpoints)
    _check_spans(config, request_id, prompt_length, spans)
    return Request(
        request_id, tokens, prompt_length, limit, min_tokens, frozenset(end_ids), tuple(checkpoints), tuple(spans)
    )


def _check_checkpoints(request_id: int, prompt_length: int, checkpoints: Sequence[int]) -> None:
    bounds = [0, *checkpoints, prompt_length]
    if any(a >= b for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"request {request_id}: checkpoints {list(checkpoints)} of a prompt of {prompt_length}")


def _check_spans(config: Config, request_id: int, prompt_length: int, spans: Spans) -> None:
    """In order, apart, inside the prompt, and never longer than what one chunk may hold."""
    position = 0
    for start, end in spans:
        if not position <= start < end <= prompt_length:
            raise ValueError(f"request {request_id}: image span {start} .. {end} is out of place")
        position = end
    slack = config.alignment - 1
    for start, end in merged(spans, slack):
        if end - start + 2 * slack > config.max_num_batched_tokens:
            raise ValueError(f"request {request_id}: images from {start} to {end} do not fit one chunk")


def merged(spans: Spans, distance: int) -> list[tuple[int, int]]:
    """Spans that are fewer than ``distance`` tokens apart as one: between them no cut need be legal."""
    result: list[tuple[int, int]] = []
    for start, end in spans:
        if result and start - result[-1][1] < distance:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result
