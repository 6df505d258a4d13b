"""An n-gram model over token ids: interpolated Kneser-Ney with the three discounts of Chen and Goodman (1998).

A text is bos ... bos | tokens | eos, with order - 1 times bos, so that every token has a full context and no n-gram
spans two texts. The highest order counts occurrences; a lower one counts the distinct tokens that its n-grams were seen
to follow. Each order takes D1, D2 or D3 off a count of one, two or more, and what it takes goes to the order below;
below the unigrams stands the uniform distribution over the vocabulary:

    p_n(w | h) = (c(hw) - D(c(hw))) / c(h) + gamma(h) p_(n-1)(w | h'),    gamma(h) = sum_w D(c(hw)) / c(h)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

_FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order whose counts of counts give none, as with the unigrams of a large text."""


@dataclass(frozen=True, slots=True)
class _Order:
    """The n-grams of one order, sorted by key (their tokens as digits of a number), and their contexts.

    ``share`` is (c(hw) - D) / c(h) of each n-gram. Those of context i are ``first[i]`` to ``first[i + 1]``.
    """

    keys: Ids
    share: Floats
    contexts: Ids
    gamma: Floats
    first: Ids


class NgramModel:
    """``order`` tokens at most are looked at together; immutable once trained."""

    def __init__(self, texts: Sequence[Sequence[int]], *, vocab_size: int, bos: int, eos: int, order: int = 5) -> None:
        """Train on texts of token ids without bos and eos."""
        if vocab_size**order > np.iinfo(np.int64).max:
            raise ValueError(f"{order}-grams of {vocab_size} tokens do not fit into 64 bits")
        self.vocab_size, self.bos, self.eos, self.order = vocab_size, bos, eos, order
        keys, counts = np.unique(np.concatenate([self._keys(self._grams(text)) for text in texts]), return_counts=True)
        orders = []
        for n in tqdm(range(order, 0, -1), desc=f"{order}-gram model", unit="order"):
            if n < order:
                keys, counts = np.unique(keys % vocab_size**n, return_counts=True)
            orders.append(_count(keys, counts, vocab_size))
        self._orders = tuple(reversed(orders))

    def bits(self, text: Sequence[int]) -> float:
        """Bits of the tokens of ``text`` and of the eos behind them."""
        grams = self._grams(text)
        return float(-np.log2(self.probabilities(grams[:, :-1], grams[:, -1])).sum())

    def probabilities(self, contexts: Ids, tokens: Ids) -> Floats:
        """Probability of each of ``tokens`` [N] behind its context [N, order - 1]."""
        found = np.full(len(tokens), 1 / self.vocab_size)
        for n, level in enumerate(self._orders):
            context = self._keys(contexts[:, contexts.shape[1] - n :])
            found *= _look_up(level.contexts, level.gamma, context, missing=1.0)
            found += _look_up(level.keys, level.share, context * self.vocab_size + tokens, missing=0.0)
        return found

    def distribution(self, context: Sequence[int]) -> Floats:
        """Probabilities [vocab_size] of the token behind ``context``, of which the last order - 1 tokens count."""
        before = self._padded(context)[-(self.order - 1) :]
        result = np.full(self.vocab_size, 1 / self.vocab_size)
        for n, level in enumerate(self._orders):
            key = int(self._keys(before[len(before) - n :]))
            i = int(np.searchsorted(level.contexts, key))
            if i == len(level.contexts) or level.contexts[i] != key:
                break  # no longer context was seen either
            seen = slice(int(level.first[i]), int(level.first[i + 1]))
            result *= level.gamma[i]
            result[level.keys[seen] % self.vocab_size] += level.share[seen]
        return result

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """``count`` likeliest tokens behind the tokens of ``prompt``, fewer where eos ends them, eos included."""
        ids = list(prompt)
        while len(ids) < len(prompt) + count:
            ids.append(int(self.distribution(ids).argmax()))
            if ids[-1] == self.eos:
                break
        return ids[len(prompt) :]

    def _padded(self, text: Sequence[int]) -> Ids:
        return np.array([*[self.bos] * (self.order - 1), *text], np.int64)

    def _grams(self, text: Sequence[int]) -> Ids:
        """The n-grams [len(text) + 1, order] that end in each token of ``text`` and in eos."""
        return np.lib.stride_tricks.sliding_window_view(self._padded([*text, self.eos]), self.order)

    def _keys(self, grams: Ids) -> Ids:
        """Token sequences [..., n] as numbers [...] of n digits."""
        digits = self.vocab_size ** np.arange(grams.shape[-1] - 1, -1, -1, dtype=np.int64)
        return np.asarray(grams @ digits, np.int64)


def discounts(counts: Ids) -> tuple[float, float, float]:
    """D1, D2 and D3+ from how many n-grams have the counts one to four; fixed ones where that gives none.

    With n_c n-grams of count c and Y = n1 / (n1 + 2 n2): D_c = c - (c + 1) Y n_(c+1) / n_c.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == c)) for c in range(1, 5))
    if not n1 or not n2 or not n3:
        return _FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 < d < c for c, d in enumerate(found, 1)) else _FALLBACK


def _count(keys: Ids, counts: Ids, vocab_size: int) -> _Order:
    context = keys // vocab_size
    first = np.flatnonzero(np.diff(context, prepend=-1))
    taken = np.array([math.nan, *discounts(counts)])[np.minimum(counts, 3)]
    totals = np.add.reduceat(counts, first)
    share = (counts - taken) / np.repeat(totals, np.diff(first, append=len(keys)))
    return _Order(keys, share, context[first], np.add.reduceat(taken, first) / totals, np.append(first, len(keys)))


def _look_up(keys: Ids, values: Floats, wanted: Ids, *, missing: float) -> Floats:
    """The value beside each wanted key, ``missing`` where there is none."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], missing)
