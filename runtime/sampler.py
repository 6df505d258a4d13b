"""Sampling of one step: per-request parameters become row arrays, and row tiles go through the sampling kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.sampler import greedy_rows, logprob_rows, sample_rows
from deepinfer_gen.runtime.kernels.reference.tiles import tiled, tiles
from deepinfer_gen.runtime.plan_types import KernelConfig
from deepinfer_gen.runtime.random_numbers import Purpose, uniforms
from deepinfer_gen.runtime.request import Request

_NO_NUMBERS = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class RowParameters:
    """Parameters of the K rows of a step that yield a token: the same as long as the rows are the same requests.

    ``random`` lists the rows that are not greedy; ``temperature``, ``top_k``, ``top_p`` and ``min_p`` are parallel to
    it. ``num_logprobs`` tells how many log probabilities are wanted, for the rows that want some. ``barred_below``
    tells the K length from which on a row may end, for the rows that have ``min_tokens``.
    """

    random: Sequence[int]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    num_logprobs: Mapping[int, int]
    barred_below: Mapping[int, int]

    @classmethod
    def of(cls, requests: Sequence[Request], vocab_size: int) -> RowParameters:
        """Parameters of one request per row."""
        params = [request.params for request in requests]
        random = [row for row, p in enumerate(params) if not p.greedy]
        drawn = [params[row] for row in random]
        return cls(
            random,
            temperature=torch.tensor([p.temperature for p in drawn], dtype=torch.float32),
            top_k=torch.tensor([min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in drawn]),
            top_p=torch.tensor([p.top_p for p in drawn], dtype=torch.float32),
            min_p=torch.tensor([p.min_p for p in drawn], dtype=torch.float32),
            num_logprobs={
                row: vocab_size if p.logprobs == -1 else min(p.logprobs, vocab_size)
                for row, p in enumerate(params)
                if p.logprobs is not None
            },
            barred_below={
                row: request.prompt_length + request.params.min_tokens
                for row, request in enumerate(requests)
                if request.params.min_tokens
            },
        )


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """What one step is sampled with.

    ``uniforms`` has a number for each random row of ``parameters``. ``barred`` lists for some rows the token ids that
    must not be drawn.
    """

    parameters: RowParameters
    uniforms: Tensor
    barred: Sequence[tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Of one row: the chosen token's log probability and rank, and the most likely tokens, best first."""

    chosen: float
    rank: int
    top_ids: list[int]
    top: list[float]


@dataclass(frozen=True, slots=True)
class Sampled:
    """``tokens`` int32 [K]; ``logprobs`` for the rows that asked for them.

    ``failed`` are the rows whose logits give no distribution: one is NaN or infinite above, or none is finite. Their
    token stands for nothing.
    """

    tokens: NDArray[np.int32]
    logprobs: Mapping[int, RowLogprobs]
    failed: Sequence[int] = ()


class SamplingTable:
    """What steps are sampled with; parameters are made into arrays when the rows change, which most steps do not."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._ids: list[int] = []
        self._parameters = RowParameters.of([], vocab_size)

    def rows(self, requests: Sequence[Request], k_lens: Sequence[int]) -> SamplingRows:
        """The parameters of the sampling rows of a step, and the next random number of each random row.

        ``requests`` and ``k_lens`` (K length with this step's tokens) are parallel, one per row.
        """
        ids = [request.id for request in requests]
        if ids != self._ids:
            self._ids, self._parameters = ids, RowParameters.of(requests, self._vocab_size)
        barred = [row for row, end in self._parameters.barred_below.items() if k_lens[row] < end]
        return SamplingRows(
            self._parameters,
            _draw([requests[row] for row in self._parameters.random]),
            [(row, requests[row].barred_ids) for row in barred],
        )


def _draw(requests: Sequence[Request]) -> Tensor:
    """The next uniform number of each request, float64; its round advances."""
    if not requests:
        return _NO_NUMBERS
    rounds = [request.next_round() for request in requests]
    seeds, branches = [r.seed for r in requests], [r.branch for r in requests]
    return torch.from_numpy(uniforms(seeds, rounds, purpose=Purpose.RESIDUAL_OR_BONUS, branch=branches))


class Sampler:
    """Draws the tokens of a step. ``kernel`` is the ``sampler`` entry of the kernel table; its tile counts rows."""

    def __init__(self, kernel: KernelConfig) -> None:
        self._tile_rows = kernel.tile["rows"]

    def sample(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """Float32 [K, vocab] raw logits to tokens; log probabilities are those of the raw distribution."""
        p = rows.parameters
        allowed = _bar(logits, rows.barred) if rows.barred else logits
        tokens = tiled(greedy_rows, self._tile_rows, allowed)
        for tile in tiles(len(p.random), self._tile_rows):
            index = p.random[tile]
            tokens[index] = sample_rows(
                allowed[index], p.temperature[tile], p.top_k[tile], p.top_p[tile], p.min_p[tile], rows.uniforms[tile]
            )
        # A NaN is the largest of its row.
        failed = torch.nonzero(~logits.amax(dim=-1).isfinite()).view(-1).tolist()
        # What was drawn from such a row may be no token of the vocabulary.
        tokens[failed] = 0
        return Sampled(tokens.numpy().astype(np.int32), self._logprobs(logits, tokens, p.num_logprobs), failed)

    def _logprobs(self, logits: Tensor, tokens: Tensor, wanted: Mapping[int, int]) -> dict[int, RowLogprobs]:
        asking = list(wanted)
        result = {}
        for tile in tiles(len(asking), self._tile_rows):
            rows = asking[tile]
            found = logprob_rows(logits[rows], tokens[rows], max(wanted[row] for row in rows))
            columns = zip(*(t.tolist() for t in found), strict=True)
            for row, (chosen, rank, top_ids, top) in zip(rows, columns, strict=True):
                width = wanted[row]
                result[row] = RowLogprobs(chosen, rank, top_ids[:width], top[:width])
        return result


def _bar(logits: Tensor, barred: Sequence[tuple[int, tuple[int, ...]]]) -> Tensor:
    """A copy in which the barred tokens cannot be drawn."""
    masked = logits.clone()
    for row, ids in barred:
        masked[row, list(ids)] = -torch.inf
    return masked
