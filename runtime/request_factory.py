"""A request from its prompt and parameters: what needs the tokenizer is prepared here."""

from __future__ import annotations

from deepinfer_gen.runtime.detokenizer import IncrementalDetokenizer
from deepinfer_gen.runtime.prompts import ParsedPrompt
from deepinfer_gen.runtime.request import Request
from deepinfer_gen.runtime.request_text import RequestText
from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams
from deepinfer_gen.runtime.tokenizer import Tokenizer


def make_request(
    number: int, prompt: ParsedPrompt, params: SamplingParams, seed: int, tokenizer: Tokenizer | None, vocab_size: int
) -> Request:
    """Build request ``number`` with its branches, and return the first.

    Raises ``ParameterError`` for stop ids or stop strings that can never be met.
    """
    outside = [i for i in params.stop_token_ids or () if i >= vocab_size]
    if outside:
        raise ParameterError(
            f"stop_token_ids lie outside the vocabulary of {vocab_size}.", parameter="stop_token_ids", value=outside
        )
    family: list[Request] = []
    for branch in range(params.n):
        text = _text(prompt, params, tokenizer)
        Request(number, prompt.text, prompt.token_ids, params, seed, text, branch, family)
    return family[0]


def _text(prompt: ParsedPrompt, params: SamplingParams, tokenizer: Tokenizer | None) -> RequestText | None:
    if tokenizer is None and params.stop:
        raise ParameterError("stop strings need a tokenizer.", parameter="stop", value=params.stop)
    if tokenizer is None or not params.detokenize:
        return None
    skip = params.skip_special_tokens
    detokenizer = IncrementalDetokenizer(lambda ids: tokenizer.decode(ids, skip_special_tokens=skip), prompt.token_ids)
    return RequestText(detokenizer, params.stop_strings, include_stop=params.include_stop_str_in_output)
