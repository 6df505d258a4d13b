"""The forms a prompt may take, and one form behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams
from deepinfer_gen.runtime.tokenizer import Tokenizer

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
    one = isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and all(isinstance(p, int) for p in prompts))
    items = [prompts] if one else list(prompts)
    return [_parse(index, item, tokenizer, vocab_size) for index, item in enumerate(items)]


def pair_params(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """One parameter set for all prompts, or as many as there are prompts."""
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
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
            raise _fault(index, f"has fields that this engine does not take: {sorted(unknown)}", prompt)
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    elif isinstance(prompt, Sequence):
        token_ids = prompt
    if token_ids is None:
        if not isinstance(text, str):
            raise _fault(index, "is neither text nor token ids", prompt)
        if tokenizer is None:
            raise _fault(index, "is text, but there is no tokenizer; give token ids", prompt)
        token_ids = tokenizer.encode(text)
    ids = [int(i) for i in token_ids]
    if not ids:
        raise _fault(index, "is empty", prompt)
    outside = [i for i in ids if not 0 <= i < vocab_size]
    if outside:
        raise _fault(index, f"has token ids outside the vocabulary of {vocab_size}: {outside[:3]}", prompt)
    return ParsedPrompt(text, ids)


def _fault(index: int, message: str, prompt: Any) -> ParameterError:
    return ParameterError(f"prompt {index} {message}.", parameter="prompts", value=prompt)
