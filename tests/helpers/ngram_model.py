"""What the n-grams of a token are, from whole lists of ids, in plain loops; and a small vocabulary to hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.model.engram import ngram_classes, table_rows

VOCABULARY = 40
PAD_ID = 2
TOKEN_MAP = [i * 7 % 29 for i in range(VOCABULARY)]
"""Some ids share a class, among them one with the pad."""

PRIMES = [1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049]
MULTIPLIERS = [29319025719747617, 1851710431809357, 13757976252775921, 28307155380027123, 31472315001388727]


def window(ids: Sequence[int], position: int, depth: int) -> list[int]:
    """Classes of the id at ``position`` and of the ``depth`` ids before it, the pad's before the start."""
    return [TOKEN_MAP[ids[position - back]] if position >= back else TOKEN_MAP[PAD_ID] for back in range(depth + 1)]


def windows(batch: ForwardBatch) -> Tensor:
    """The engine's answer for every token of a step [T, depth + 1]."""
    token_map = torch.tensor(TOKEN_MAP)
    return ngram_classes(batch, token_map, token_map[PAD_ID])


def rows(classes: Any) -> Tensor:
    """Table rows of windows [T, depth + 1], with two heads."""
    ngrams = torch.as_tensor(classes).view(-1, len(classes[0]))
    orders = ngrams.shape[1] - 1
    primes = torch.tensor(PRIMES[: 2 * orders])
    offsets = primes.cumsum(0) - primes
    return table_rows(ngrams, torch.tensor(MULTIPLIERS[: orders + 1]), primes.view(orders, 2), offsets.view(orders, 2))
