"""The forms a prompt may take, and one form behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams
from deepinfer_gen.runtime.tokenizer import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A prompt's text, if it came as text, and its token ids."""

    text: str | None
    token_ids: list[int]


def parse_prompts(
    prompts: Prompt | Sequence[Prompt], tokenizer: Tokenizer | None, vocab_size: int
) -> list[ParsedPrompt]:
    """Accept a text, a list of token ids, ``{"prompt": …}``, ``{"prompt_token_ids": …}``, or a list of these.

    Texts get BOS as the checkpoint demands; token ids are taken as they are. Raises ``ParameterError`` for an empty
    prompt, an unknown form or an id outside the vocabulary, naming the prompt.
    """
    if not isinstance(prompts, (str, bytes, Mapping, Sequence)):
        message = f"prompts must be a prompt or a list of prompts, got {type(prompts).__name__}."
        raise ParameterError(message, parameter="prompts", value=prompts)
    one = isinstance(prompts, (str, bytes, Mapping)) or (len(prompts) > 0 and all(isinstance(p, int) for p in prompts))
    items = [prompts] if one else list(prompts)
    return [_parse(index, item, tokenizer, vocab_size) for index, item in enumerate(items)]


def pair_params(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """One parameter set for all prompts, or as many as there are prompts."""
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise ParameterError(
            "sampling_params must be one SamplingParams or a list of them.", parameter="sampling_params", value=params
        )
    if len(params) != num_prompts:
        raise ParameterError(
            f"{num_prompts} prompts need one sampling_params or {num_prompts} of them, got {len(params)}.",
            parameter="sampling_params",
            value=len(params),
        )
    return list(params)


def _parse(index: int, prompt: Any, tokenizer: Tokenizer | None, vocab_size: int) -> ParsedPrompt:
    text, token_ids = None, None
    if isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown:
            raise _fault(index, f"has fields that this engine does not take: {sorted(map(str, unknown))}", prompt)
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    elif isinstance(prompt, Sequence):
        token_ids = prompt
    if (text is None and token_ids is None) or not isinstance(text, str | None):
        raise _fault(index, "is neither text nor token ids", prompt)
    if text is not None and _SURROGATE.search(text):
        raise _fault(index, "holds half a surrogate pair, which is no character", prompt)
    if token_ids is None and text is not None:
        if tokenizer is None:
            raise _fault(index, "is text, but there is no tokenizer; give token ids", prompt)
        token_ids = tokenizer.encode(text)
    ids = _integers(index, token_ids, prompt)
    if not ids:
        raise _fault(index, "is empty", prompt)
    outside = [i for i in ids if not 0 <= i < vocab_size]
    if outside:
        raise _fault(index, f"has token ids outside the vocabulary of {vocab_size}: {outside[:3]}", prompt)
    return ParsedPrompt(text, ids)


def _integers(index: int, token_ids: Any, prompt: Any) -> list[int]:
    """Token ids as integers; nothing is rounded or parsed, since a wrong id would generate something."""
    sound = isinstance(token_ids, Sequence) and not isinstance(token_ids, (str, bytes, bytearray))
    if not sound or not all(isinstance(i, (int, Integral)) and not isinstance(i, bool) for i in token_ids):
        raise _fault(index, "has token ids that are no list of integers", prompt)
    return [int(i) for i in token_ids]


def _fault(index: int, message: str, prompt: Any) -> ParameterError:
    return ParameterError(f"prompt {index} {message}.", parameter="prompts", value=prompt)
