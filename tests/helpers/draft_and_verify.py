"""Greedy decoding with drafts, plainly: draft, run the drafts as one row, keep those that the model would have said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from deepinfer_gen.runtime.model.draft_context import DraftRows
from deepinfer_gen.runtime.model.dspark import Drafts


@dataclass
class Transcript:
    """Tokens of one sequence; of each round, its drafts and how many of them were accepted."""

    tokens: list[int]
    accepted: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)


@contextmanager
def observed(model: Any) -> Iterator[list[torch.Tensor]]:
    """A list that receives the target features [T, targets * d] of every step run inside."""
    features: list[torch.Tensor] = []
    observe = model.drafter.observe

    def keep(rows: torch.Tensor, step: Any) -> None:
        features.append(rows.clone())
        observe(rows, step)

    model.drafter.observe = keep
    try:
        yield features
    finally:
        del model.drafter.observe


def draft(driver: Any, sequences: Sequence[Any], tokens: Sequence[int], *, padding: int = 0, **options: Any) -> Drafts:
    """Drafts behind the newest ``tokens``, which stand at each sequence's ``done``; padding rows follow."""
    return driver.model.draft(
        DraftRows(
            torch.tensor([*tokens, *[0] * padding]),
            torch.tensor([*(s.done for s in sequences), *[0] * padding]),
            torch.tensor([*(s.slot for s in sequences), *[0] * padding]),
        ),
        driver.cache,
        **options,
    )


def speculate(driver: Any, sequences: Sequence[Any], first: Sequence[int], count: int) -> list[Transcript]:
    """At least ``count`` greedy tokens of each sequence, whose ids have all been run; ``first`` are the newest tokens.

    A sequence that has enough leaves the batch, so that the rounds of the others run beside fewer.
    """
    transcripts = [Transcript([token]) for token in first]
    while rows := [(s, t) for s, t in zip(sequences, transcripts, strict=True) if len(t.tokens) < count]:
        drafts = draft(driver, [s for s, _ in rows], [t.tokens[-1] for _, t in rows]).ids.tolist()
        for (sequence, transcript), guessed in zip(rows, drafts, strict=True):
            sequence.ids += [transcript.tokens[-1], *guessed]
        length = 1 + len(drafts[0])
        best = driver.step([(s, length) for s, _ in rows]).argmax(1).view(-1, length).tolist()
        for (sequence, transcript), guessed, right in zip(rows, drafts, best, strict=True):
            accepted = next((k for k, token in enumerate(guessed) if token != right[k]), len(guessed))
            transcript.tokens += right[: accepted + 1]
            transcript.accepted.append(accepted)
            transcript.drafts.append(guessed)
            # Rolling back is forgetting positions: what rejected drafts wrote lies behind the end.
            sequence.done -= len(guessed) - accepted
            del sequence.ids[sequence.done :]
    return transcripts
