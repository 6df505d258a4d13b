"""Draft-and-verify over the model's modules against the numeric reference's transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from checkpoint_model import CheckpointModel
from decoding import Round, greedy, speculate
from drafts import LONGEST, SHORTEST, choose_prompts, measure, rounds_of
from paged_sequences import PagedSequences

LENGTHS = (1, 2, 3, 127, 128, 129, 300)


@pytest.fixture(scope="module")
def prompts(oracle: Mapping[str, Any]) -> list[list[int]]:
    return [oracle[f"p{n}_ids"].tolist() for n in LENGTHS]


def test_transcripts_are_the_reference_s(
    checkpoint: CheckpointModel, oracle: Mapping[str, Any], prompts: list[list[int]]
) -> None:
    """In batches of three, so that slots and blocks of sequences that ended are used again."""
    found = speculate(checkpoint, prompts, 32, rows=3, eos=None)
    for n, transcript in zip(LENGTHS, found, strict=True):
        assert transcript.tokens[:32] == oracle[f"p{n}_spec"].tolist()
        assert [entry.accepted for entry in transcript.rounds] == oracle[f"p{n}_spec_accept"].tolist()
        assert {entry.observed for entry in transcript.rounds} == {5}
        np.testing.assert_allclose(
            transcript.rounds[0].confidence_logits, oracle[f"p{n}_draft_conf"], rtol=0, atol=1e-3
        )


def test_greedy_is_the_reference_s(
    checkpoint: CheckpointModel, oracle: Mapping[str, Any], prompts: list[list[int]]
) -> None:
    found = greedy(checkpoint, prompts, 32, rows=8, eos=None)
    assert [t.tokens for t in found] == [oracle[f"p{n}_greedy"].tolist() for n in LENGTHS]


def until_eos(tokens: Sequence[int], accepted: Sequence[int], eos: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The reference's transcript played again up to ``eos``: tokens, and accepted and known drafts of each round."""
    said, rounds, at = [tokens[0]], list[tuple[int, int]](), 1
    for count in accepted:
        if said[-1] == eos:
            break
        drafted, bonus = list(tokens[at : at + count]), list(tokens[at + count : at + count + 1])
        if eos in drafted:
            known = drafted.index(eos) + 1
            said += drafted[:known]
            rounds.append((known, known))
        else:
            said += drafted + bonus
            rounds.append((count, 5))
        at += count + 1
    return said, rounds


def test_eos_ends_a_transcript_inside_a_round(
    checkpoint: CheckpointModel, oracle: Mapping[str, Any], prompts: list[list[int]]
) -> None:
    """Each of the first eight tokens that the reference says is eos in turn."""
    seen = set()
    tokens, accepted = oracle["p3_spec"].tolist(), oracle["p3_spec_accept"].tolist()
    for eos in sorted(set(tokens[:8])):
        said, rounds = until_eos(tokens, accepted, eos)
        found = speculate(checkpoint, [prompts[2]], 8, rows=1, eos=eos)[0]
        assert found.tokens == said
        assert found.tokens[-1] == eos
        assert [(r.accepted, r.observed) for r in found.rounds] == rounds
        assert greedy(checkpoint, [prompts[2]], 8, rows=1, eos=eos)[0].tokens == said
        seen |= {r.observed for r in found.rounds}
    assert seen > {5}, "some round was cut"


def test_measure_counts_what_the_rounds_say(
    checkpoint: CheckpointModel, oracle: Mapping[str, Any], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointModel, "eos", None)
    found = measure(checkpoint, prompts[:4], 32, rows=8)
    accepted = [int(a) for n in LENGTHS[:4] for a in oracle[f"p{n}_spec_accept"]]
    assert (found.prompts, found.equal) == (4, 4)
    assert found.tokens_per_round == pytest.approx(sum(a + 1 for a in accepted) / len(accepted))
    for k, rate in enumerate(found.acceptance):
        reached = [a > k for a in accepted if a >= k]
        assert rate == pytest.approx(sum(reached) / len(reached))


def test_rounds_become_arrays() -> None:
    assert rounds_of([], 2).confidence_logits.shape == (0, 2)
    assert Round(1, 2, (0.5, 1.0)).accepted == 1


def test_prompts_begin_files_in_the_order_of_their_hashes(checkpoint: CheckpointModel) -> None:
    texts = [(f"file{i}.py", list(range(3, 3 + 100 * i))) for i in range(8)]
    few, many = choose_prompts(checkpoint, texts, 3), choose_prompts(checkpoint, texts[::-1], 20)
    assert many[:3] == few, "the order of the list does not matter"
    assert len(many) == len({tuple(prompt) for prompt in many}) == 20
    assert len({len(prompt) for prompt in many[:6]}) > 1
    for prompt in many:
        assert SHORTEST <= len(prompt) <= LONGEST
        assert prompt == [checkpoint.bos, *range(3, 2 + len(prompt))]
    assert len(choose_prompts(checkpoint, [("a.py", [3] * (SHORTEST - 1))], 5)) == 1
    with pytest.raises(ValueError, match="none of 1 texts has the 128 tokens"):
        choose_prompts(checkpoint, [("a.py", [3] * (SHORTEST - 2))], 5)


def test_a_sequence_longer_than_the_engine_s_is_refused(checkpoint: CheckpointModel) -> None:
    engine = PagedSequences(checkpoint)
    longest = checkpoint.constant("max_positions")
    sequence = engine.begin([5] * (longest + 1))
    sequence.done = longest - 1
    with pytest.raises(ValueError, match=f"{longest + 1} tokens, the engine was planned for {longest}"):
        engine.prefill([sequence])
