"""Sampling over a tile of rows, in PyTorch.

Every operation works row by row in a fixed order, so a row's result does not depend on the other rows of its tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprobs(NamedTuple):
    """Raw log probabilities of a tile: of the chosen tokens ([n]) and of the ``width`` most likely ones ([n, width]).

    ``rank`` [n] of a chosen token counts the tokens that are strictly more likely, plus one.
    """

    chosen: Tensor
    rank: Tensor
    top_ids: Tensor
    top: Tensor


def greedy_rows(logits: Tensor) -> Tensor:
    """The most likely token of each row, the lowest id on a tie: float32 [n, vocab] to int64 [n]."""
    return logits.argmax(dim=-1)


def sample_rows(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor
) -> Tensor:
    """Draw one token per row: float32 [n, vocab] to int64 [n].

    ``temperature`` [n] is positive; ``top_k`` [n] int64 counts tokens (vocab switches it off); ``top_p`` [n] in (0, 1];
    ``min_p`` [n] in [0, 1]; ``uniforms`` [n] float64 in [0, 1). Filters apply in the order min-p, top-k, top-p. The
    draw inverts the cumulative distribution in the order of token ids, one uniform number per row.
    """
    scaled = logits.double() / temperature.double()[:, None]
    probabilities = torch.softmax(scaled, dim=-1)
    floor = min_p.double()[:, None] * probabilities.amax(dim=-1, keepdim=True)
    probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    filtered = ((top_k < logits.shape[-1]) | (top_p < 1.0)).nonzero().squeeze(-1)
    if filtered.numel():
        probabilities[filtered] = _keep_top(probabilities[filtered], top_k[filtered], top_p[filtered].double())
    cumulative = probabilities.cumsum(dim=-1)
    # A float64 below 1 times the total rounds to less than the total, so a token is always found.
    target = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def _keep_top(probabilities: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what is outside the ``top_k`` most likely tokens, then outside the smallest set that holds ``top_p``."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill(place >= top_k[:, None], 0.0)
    cumulative = ordered.cumsum(dim=-1)
    before = cumulative - ordered
    outside = before >= top_p[:, None] * cumulative[:, -1:]
    outside[:, 0] = False
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered.masked_fill(outside, 0.0))


def logprob_rows(logits: Tensor, tokens: Tensor, width: int) -> TokenLogprobs:
    """Log probabilities of the raw distribution: float32 [n, vocab], int64 [n], ``width`` alternatives per row."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, tokens[:, None])
    rank = (logprobs > chosen).sum(dim=-1) + 1
    top, top_ids = logprobs.sort(dim=-1, descending=True, stable=True)
    return TokenLogprobs(chosen.squeeze(-1), rank, top_ids[:, :width], top[:, :width])
