"""Groups of texts that repeat one another, found exactly from the token shingles they share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_TOKEN = re.compile(r"\w+|[^\w\s]")
# Tokens of a shingle: about a line of code.
_SHINGLE = 8
# Texts belong together when this share of the smaller one's shingles is in the other: a copy inside a larger file
# counts, which the Jaccard index would miss.
_SHARED = 0.5


def clusters(documents: Mapping[str, str]) -> list[list[str]]:
    """The names of ``documents`` in groups: chains of near duplicates. Names, and groups by first name, are sorted."""
    names = sorted(documents)
    first = list(range(len(names)))

    def root(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    for a, b in _pairs([_shingles(documents[name]) for name in names]):
        low, high = sorted((root(a), root(b)))
        first[high] = low
    groups: dict[int, list[str]] = {}
    for i, name in enumerate(names):
        groups.setdefault(root(i), []).append(name)
    return list(groups.values())


def _shingles(text: str) -> npt.NDArray[np.uint64]:
    """Hashes of the distinct runs of ``_SHINGLE`` tokens; a text shorter than one shingle is one."""
    codes: dict[str, int] = {}
    tokens = _TOKEN.findall(text)
    for token in tokens:
        if token not in codes:
            codes[token] = int.from_bytes(blake2b(token.encode(), digest_size=8).digest(), "little")
    values = np.array([codes[token] for token in tokens], np.uint64)
    values = np.pad(values, (0, max(0, _SHINGLE - len(values))))
    mixed = np.zeros(len(values) - _SHINGLE + 1, np.uint64)
    for place in range(_SHINGLE):
        # A polynomial in an odd base modulo 2^64 keeps the order of the tokens.
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + values[place : place + len(mixed)]
    return np.unique(mixed)


def _pairs(shingles: list[npt.NDArray[np.uint64]]) -> list[tuple[int, int]]:
    """Pairs (a, b), a < b, of texts that share ``_SHARED`` of the smaller one's shingles."""
    sizes = np.array([len(s) for s in shingles])
    owners = np.repeat(np.arange(len(shingles)), sizes)
    _, kinds = np.unique(np.concatenate(shingles), return_inverse=True)
    order = np.argsort(kinds, kind="stable")
    posted = owners[order]
    starts = np.searchsorted(kinds[order], np.arange(kinds.max() + 2))
    ends = np.cumsum(sizes)
    found = []
    for b in range(len(shingles)):
        own = kinds[ends[b] - sizes[b] : ends[b]]
        own = own[starts[own + 1] - starts[own] > 1]
        if not len(own):
            continue
        lists = [posted[starts[kind] : starts[kind + 1]] for kind in own]
        common = np.bincount(np.concatenate(lists), minlength=len(shingles))[:b]
        found += [(int(a), b) for a in np.flatnonzero(common >= _SHARED * np.minimum(sizes[:b], sizes[b]))]
    return found
