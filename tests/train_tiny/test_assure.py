"""The fit of the confidence head to greedy rounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from assure import conditional_evidence, fit, spread_prompts, watched
from checkpoint_model import CheckpointModel
from decoding import Round, Transcript, speculate
from drafts import LONGEST, SHORTEST


def test_a_row_that_explains_the_answers_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([1.5, -1.0, 0.0, 0.5])
    evidence = torch.randn(20_000, 4, generator=generator)
    accepted = torch.bernoulli(torch.sigmoid(evidence @ truth), generator=generator).double()
    held = torch.zeros(4)
    row, before, after = fit(held, evidence, accepted)
    assert after < before
    # The pull towards the trained row shortens it; its direction stays.
    assert torch.nn.functional.cosine_similarity(row, truth, dim=0) > 0.995
    assert 0.3 < row.norm() / truth.norm() < 1
    kept, same, _ = fit(truth, evidence, accepted)
    torch.testing.assert_close(kept, truth, atol=0.05, rtol=0)
    assert same < before


def test_a_direction_without_evidence_stays() -> None:
    evidence = torch.randn(500, 3, generator=torch.Generator().manual_seed(1))
    evidence[:, 2] = 0
    row, _, _ = fit(torch.tensor([0.0, 0.0, 7.0]), evidence, (evidence[:, 0] > 0).double())
    assert row[2] == 7.0
    assert row[0] > 0.5


@pytest.mark.parametrize(
    ("accepted", "observed", "labels"),
    [(0, 3, [0.0]), (2, 3, [1.0, 1.0, 0.0]), (3, 3, [1.0, 1.0, 1.0]), (1, 1, [1.0])],
)
def test_only_drafts_behind_accepted_ones_are_asked(accepted: int, observed: int, labels: Sequence[float]) -> None:
    logits = (0.1, 0.2, 0.3)
    evidence = torch.arange(6.0).view(3, 2)
    transcripts = [Transcript([1], [Round(accepted, observed, logits)])]
    rows, found = conditional_evidence(transcripts, {logits: evidence})
    assert found.tolist() == labels
    assert torch.equal(rows, evidence[: len(labels)])


def test_the_evidence_of_a_round_gives_its_logits(checkpoint: CheckpointModel) -> None:
    """Of two sequences in one batch, as the confidence head of the shipped random model multiplies it."""
    drafter = checkpoint.model.drafter
    assert drafter is not None
    plain = drafter.operators
    with watched(checkpoint) as evidence:
        drafted = speculate(checkpoint, [[5, 6, 7], [9, 8]], 8, rows=2, eos=None)
    assert drafter.operators is plain
    row = drafter.confidence_head.decode()[0]
    rounds = [turn for transcript in drafted for turn in transcript.rounds]
    assert len(rounds) >= 4
    for turn in rounds:
        expected = torch.tensor(turn.confidence_logits)
        torch.testing.assert_close(evidence[turn.confidence_logits] @ row, expected, atol=1e-4, rtol=1e-4)


def test_prompts_are_spread_over_the_whole_text() -> None:
    texts = [list(range(1000)), list(range(1000, 5000))]
    prompts = spread_prompts(texts, 10)
    assert prompts[0][0] == 0
    assert prompts[-1][0] == 5000 - LONGEST
    assert all(SHORTEST <= len(p) <= LONGEST and p == list(range(p[0], p[0] + len(p))) for p in prompts)
