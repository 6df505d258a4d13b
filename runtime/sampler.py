"""Sampling of one step: per-request parameters become row arrays, and row tiles go through the sampling kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.sampler import greedy_rows, logprob_rows, sample_rows
from deepinfer_gen.runtime.plan_types import KernelConfig
from deepinfer_gen.runtime.random_numbers import Purpose, uniforms
from deepinfer_gen.runtime.request import Request

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of the K rows of a step that yield a token.

    ``random`` holds the indices of the rows that are not greedy; ``temperature``, ``top_k``, ``top_p``, ``min_p`` and
    ``uniforms`` are parallel to it. ``num_logprobs`` [K] is -1 where none are wanted. ``barred`` lists for some rows
    the token ids that must not be drawn.
    """

    random: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniforms: Tensor
    num_logprobs: NDArray[np.int64]
    barred: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Of one row: the chosen token's log probability and rank, and the most likely tokens, best first."""

    chosen: float
    rank: int
    top_ids: list[int]
    top: list[float]


@dataclass(frozen=True, slots=True)
class Sampled:
    """``tokens`` int32 [K]; ``logprobs`` for the rows that asked for them."""

    tokens: NDArray[np.int32]
    logprobs: Mapping[int, RowLogprobs]


class SamplingTable:
    """Sampling parameters by state slot, so that the arrays of a step are gathered instead of rebuilt."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._owner = np.zeros(num_slots, np.uint64)
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.full(num_slots, vocab_size, np.int64)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._num_logprobs = np.full(num_slots, NO_LOGPROBS, np.int64)
        self._barred_below = np.zeros(num_slots, np.int64)

    def rows(
        self,
        requests: Sequence[Request],
        ids: NDArray[np.uint64],
        slots: NDArray[np.int32],
        k_lens: NDArray[np.int32],
    ) -> SamplingRows:
        """The parameters of the sampling rows of a step, and the next random number of each random row.

        ``requests``, ``ids``, ``slots`` and ``k_lens`` (K length with this step's tokens) are parallel, one per row.
        """
        for row in np.nonzero(self._owner[slots] != ids)[0].tolist():
            self._fill(int(slots[row]), requests[row])
        temperature = self._temperature[slots]
        random = np.nonzero(temperature > 0)[0]
        chosen = slots[random]
        return SamplingRows(
            torch.from_numpy(random),
            torch.from_numpy(temperature[random]),
            torch.from_numpy(self._top_k[chosen]),
            torch.from_numpy(self._top_p[chosen]),
            torch.from_numpy(self._min_p[chosen]),
            torch.from_numpy(_draw([requests[row] for row in random.tolist()])),
            self._num_logprobs[slots],
            tuple((r, requests[r].barred_ids) for r in np.nonzero(k_lens < self._barred_below[slots])[0].tolist()),
        )

    def _fill(self, slot: int, request: Request) -> None:
        params = request.params
        self._owner[slot] = request.id
        self._temperature[slot] = 0.0 if params.greedy else params.temperature
        self._top_k[slot] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        wanted = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self._num_logprobs[slot] = self._vocab_size if params.logprobs == -1 else min(wanted, self._vocab_size)
        self._barred_below[slot] = request.prompt_length + params.min_tokens


def _draw(requests: Sequence[Request]) -> NDArray[np.float64]:
    """The next uniform number of each request; its round advances."""
    if not requests:
        return np.empty(0, np.float64)
    rounds = [request.next_round() for request in requests]
    return uniforms([request.seed for request in requests], rounds, purpose=Purpose.RESIDUAL_OR_BONUS)


class Sampler:
    """Draws the tokens of a step. ``kernel`` is the ``sampler`` entry of the kernel table; its tile counts rows."""

    def __init__(self, kernel: KernelConfig) -> None:
        self._tile_rows = kernel.tile["rows"]

    def sample(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """Float32 [K, vocab] raw logits to tokens; log probabilities are those of the raw distribution."""
        allowed = _bar(logits, rows.barred) if rows.barred else logits
        tokens = torch.empty(logits.shape[0], dtype=torch.int64)
        if rows.random.shape[0] < logits.shape[0]:
            for tile in _tiles(logits.shape[0], self._tile_rows):
                tokens[tile] = greedy_rows(allowed[tile])
        for tile in _tiles(rows.random.shape[0], self._tile_rows):
            index = rows.random[tile]
            tokens[index] = sample_rows(
                allowed[index],
                rows.temperature[tile],
                rows.top_k[tile],
                rows.top_p[tile],
                rows.min_p[tile],
                rows.uniforms[tile],
            )
        return Sampled(tokens.numpy().astype(np.int32), self._logprobs(logits, tokens, rows.num_logprobs))

    def _logprobs(self, logits: Tensor, tokens: Tensor, wanted: NDArray[np.int64]) -> dict[int, RowLogprobs]:
        asking = np.nonzero(wanted != NO_LOGPROBS)[0]
        result = {}
        for tile in _tiles(len(asking), self._tile_rows):
            rows = asking[tile]
            index = torch.from_numpy(rows)
            found = logprob_rows(logits[index], tokens[index], int(wanted[rows].max()))
            columns = zip(*(t.tolist() for t in found), strict=True)
            for row, (chosen, rank, top_ids, top) in zip(rows, columns, strict=True):
                width = int(wanted[row])
                result[int(row)] = RowLogprobs(chosen, rank, top_ids[:width], top[:width])
        return result


def _tiles(count: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def _bar(logits: Tensor, barred: tuple[tuple[int, tuple[int, ...]], ...]) -> Tensor:
    """A copy in which the barred tokens cannot be drawn."""
    masked = logits.clone()
    for row, ids in barred:
        masked[row, list(ids)] = -torch.inf
    return masked
