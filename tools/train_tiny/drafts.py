"""How many drafts are accepted: greedy draft-and-verify behind the beginnings of held-out files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from checkpoint_model import CheckpointModel
from decoding import Round, Transcript, greedy, speculate
from numpy.typing import NDArray

SHORTEST, LONGEST = 128, 512
"""Tokens of a prompt, bos included."""
_PASSES = 8
"""Prompts of different lengths that one file may give where there are fewer files than prompts."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """N rounds: drafts accepted and drafts whose answer is known [N], logits of the confidence head [N, nextn]."""

    accepted: NDArray[np.int64]
    observed: NDArray[np.int64]
    confidence_logits: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafting gave: ``equal`` of ``prompts`` transcripts are those of plain greedy decoding.

    ``tokens_per_round`` counts the bonus token; ``acceptance`` is, by position, the share of accepted drafts among
    those whose predecessors were all accepted.
    """

    prompts: int
    equal: int
    tokens_per_round: float
    acceptance: tuple[float, ...]
    rounds: Rounds


def choose_prompts(
    checkpoint: CheckpointModel, texts: Sequence[tuple[str, Sequence[int]]], count: int
) -> list[list[int]]:
    """The first tokens of named token texts, ``SHORTEST`` to ``LONGEST`` by a hash of the name, at most ``count``.

    Files come in the order of their hashes, those that are too short are left out, and a file comes again, with another
    length, only after all others. ``ValueError`` where all are too short.
    """
    chosen: dict[tuple[str, int], list[int]] = {}
    for turn in range(_PASSES):
        for name, ids in sorted(texts, key=lambda text: _hash(text[0])):
            length = min(1 + len(ids), SHORTEST + _hash(f"{turn} {name}") % (LONGEST - SHORTEST + 1))
            if length >= SHORTEST and len(chosen) < count:
                chosen.setdefault((name, length), [checkpoint.bos, *ids][:length])
    if not chosen:
        raise ValueError(f"none of {len(texts)} texts has the {SHORTEST} tokens of a prompt, bos included")
    return list(chosen.values())


def measure(checkpoint: CheckpointModel, prompts: Sequence[Sequence[int]], count: int, *, rows: int) -> Drafting:
    """``count`` new tokens behind each prompt with drafts, and without for the comparison."""
    drafted = speculate(checkpoint, prompts, count, rows=rows, eos=checkpoint.eos)
    plain = greedy(checkpoint, prompts, count, rows=rows, eos=checkpoint.eos)
    equal = sum(d.tokens[:count] == p.tokens for d, p in zip(drafted, plain, strict=True))
    rounds = rounds_of(drafted, checkpoint.nextn)
    # The first token of a transcript is the prefill's.
    made = sum(len(transcript.tokens) - 1 for transcript in drafted)
    reached = [rounds.accepted >= k for k in range(checkpoint.nextn)]
    known = [rounds.observed > k for k in range(checkpoint.nextn)]
    acceptance = tuple(
        float((rounds.accepted > k)[reached[k] & known[k]].mean()) if (reached[k] & known[k]).any() else float("nan")
        for k in range(checkpoint.nextn)
    )
    return Drafting(len(prompts), equal, made / len(rounds.accepted), acceptance, rounds)


def rounds_of(transcripts: Sequence[Transcript], nextn: int) -> Rounds:
    """The rounds of all transcripts, in their order."""
    rounds: list[Round] = [entry for transcript in transcripts for entry in transcript.rounds]
    return Rounds(
        np.array([entry.accepted for entry in rounds], np.int64),
        np.array([entry.observed for entry in rounds], np.int64),
        np.array([entry.confidence_logits for entry in rounds], np.float64).reshape(-1, nextn),
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
