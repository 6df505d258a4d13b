"""The mirror split of context-parallel prefill: who computes which tokens of a step's chunks.

Attention is causal, so a token costs as many keys as stand before it. A chunk is cut into 2 x cp pieces, and rank i
takes piece i and its mirror image 2 x cp - 1 - i: every rank has tokens of the same mean position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class MirrorSplit(NamedTuple):
    """Of the T tokens of a step, int64: which rank has them, and where.

    ``owner`` [T]: the token's rank. ``place`` [T]: its index among the tokens of that rank. ``tokens`` [cp, T]: the
    tokens of each rank in order of sequence and position, then -1. ``counts`` [cp]: how many those are.
    """

    owner: Tensor
    place: Tensor
    tokens: Tensor
    counts: Tensor


def mirror_split(starts: Tensor, total: int, cp: int) -> MirrorSplit:
    """Split the chunks of a step; ``starts`` int64 [chunks + 1] are their first tokens and ``total``, the end.

    A piece has ceil(length / (2 x cp)) tokens, so the last pieces of a chunk that is no multiple of 2 x cp (the last of
    its prompt) are shorter or empty.
    """
    device, pieces = starts.device, 2 * cp
    lengths = starts.diff()
    size = (lengths + pieces - 1) // pieces
    chunk = torch.repeat_interleave(torch.arange(lengths.shape[0], device=device), lengths, output_size=total)
    inside = torch.arange(total, device=device) - starts[chunk]
    piece = inside // size[chunk]
    owner = torch.minimum(piece, pieces - 1 - piece)

    rank = torch.arange(cp, device=device)
    mine = owner == rank.unsqueeze(1)
    place = (mine.cumsum(1) - 1).gather(0, owner.unsqueeze(0)).squeeze(0)
    tokens = torch.full((cp, total), -1, dtype=torch.int64, device=device)
    tokens[owner, place] = torch.arange(total, device=device)
    return MirrorSplit(owner, place, tokens, mine.sum(1))
