"""The drafter against the numeric reference: features, drafts, confidences, and decoding with drafts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled_tiny import compiled_tiny
from draft_and_verify import draft, observed, speculate

LENGTHS = (1, 2, 3, 127, 128, 129, 300)
TOLERANCE = 1e-4


def prefilled(
    driver: Any, oracle: Mapping[str, Any], lengths: tuple[int, ...] = LENGTHS
) -> tuple[list[Any], list[int]]:
    """The prompts after one common prefill step, and their first tokens."""
    sequences = [driver.add(oracle[f"p{n}_ids"]) for n in lengths]
    logits = driver.step([(s, len(s.ids)) for s in sequences])
    ends = np.cumsum([len(s.ids) for s in sequences]) - 1
    return sequences, logits[ends].argmax(1).tolist()


@pytest.mark.parametrize("length", [1, 128, 300, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 127, 129))])
def test_draft_and_decode_alone(
    length: int, make_drafting_driver: Any, oracle: Mapping[str, Any], drafts: Mapping[str, Any]
) -> None:
    driver = make_drafting_driver()
    sequences, first = prefilled(driver, oracle, (length,))
    found = draft(driver, sequences, first)
    assert found.ids.tolist() == [drafts[f"p{length}_draft_ids"].tolist()]
    logits, confidences = found.logits[0].numpy(), found.confidence_logits[0].numpy()
    np.testing.assert_allclose(logits, drafts[f"p{length}_draft_logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(confidences, drafts[f"p{length}_draft_conf"], rtol=0, atol=TOLERANCE)
    transcript = speculate(driver, sequences, first, 32)[0]
    assert transcript.tokens[:32] == drafts[f"p{length}_spec"].tolist() == oracle[f"p{length}_greedy"].tolist()
    assert transcript.accepted == drafts[f"p{length}_spec_accept"].tolist()
    assert transcript.drafts == drafts[f"p{length}_spec_drafts"].tolist()


def test_draft_and_decode_in_one_batch(
    make_drafting_driver: Any, oracle: Mapping[str, Any], drafts: Mapping[str, Any]
) -> None:
    """Sequences of different lengths, with padding rows, in slots and blocks that others have used."""
    driver = make_drafting_driver()
    for length in (300, 3, 128):
        earlier = driver.add(oracle[f"p{length}_ids"][::-1])
        driver.prefill(earlier)
        driver.release(earlier)
    with observed(driver.model) as features:
        sequences, first = prefilled(driver, oracle)
    last = features[0][np.cumsum(LENGTHS) - 1].numpy()
    expected = np.stack([drafts[f"p{n}_draft_features_last"] for n in LENGTHS])
    np.testing.assert_allclose(last, expected, rtol=0, atol=TOLERANCE)
    found = draft(driver, sequences, first, padding=3)
    assert found.ids[:7].tolist() == [drafts[f"p{n}_draft_ids"].tolist() for n in LENGTHS]
    logits = np.stack([drafts[f"p{n}_draft_logits"] for n in LENGTHS])
    np.testing.assert_allclose(found.logits[:7].numpy(), logits, rtol=0, atol=TOLERANCE)
    confidences = np.stack([drafts[f"p{n}_draft_conf"] for n in LENGTHS])
    np.testing.assert_allclose(found.confidence_logits[:7].numpy(), confidences, rtol=0, atol=TOLERANCE)
    assert torch.isfinite(found.logits).all()
    transcripts = speculate(driver, sequences, first, 32)
    for length, transcript in zip(LENGTHS, transcripts, strict=True):
        assert transcript.tokens[:32] == oracle[f"p{length}_greedy"].tolist()
        assert transcript.accepted == drafts[f"p{length}_spec_accept"].tolist()
        assert transcript.drafts == drafts[f"p{length}_spec_drafts"].tolist()


def test_the_transcripts_accept_from_none_to_all(drafts: Mapping[str, Any]) -> None:
    assert {int(a) for n in LENGTHS for a in drafts[f"p{n}_spec_accept"]} == set(range(6))


@pytest.mark.parametrize("chunk", [50, 200, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 7, 134))])
def test_chunks_give_the_features_and_rings_of_one_step(
    chunk: int, make_drafting_driver: Any, drafting_engine: Any, oracle: Mapping[str, Any]
) -> None:
    """The prompt goes round the ring of 134 rows twice."""
    found = []
    for size in (300, chunk):
        driver = make_drafting_driver()
        sequence = driver.add(oracle["p300_ids"])
        with observed(driver.model) as features:
            driver.prefill(sequence, size)
        regions = [driver.cache.slot_rows(layer.swa) for layer in drafting_engine.plan.draft.layers]
        found.append((torch.cat(features), torch.stack([region.grid[sequence.slot] for region in regions])))
    (features, rings), (chunked_features, chunked_rings) = found
    assert features.shape == (300, 3 * 128)
    assert rings.abs().amax(2).min() > 0, "every row of every ring is written"
    torch.testing.assert_close(chunked_features, features, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(chunked_rings, rings, rtol=0, atol=TOLERANCE)


def test_the_rings_hold_the_projected_features(
    make_drafting_driver: Any, drafting_engine: Any, oracle: Mapping[str, Any]
) -> None:
    """rope(rms(wkv rms(main_proj F))) of the position that a place of the ring belongs to, row by row in float64."""
    driver = make_drafting_driver()
    sequence = driver.add(oracle["p300_ids"])
    with observed(driver.model) as features:
        driver.prefill(sequence)
    drafter = driver.model.drafter

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x * x).mean().sqrt() * weight.double()

    for layer, plan in zip(drafter.layers, drafting_engine.plan.draft.layers, strict=True):
        ring = driver.cache.slot_rows(plan.swa).grid[sequence.slot]
        for position in (166, 267, 268, 299):
            main = normed(drafter.main_proj.decode().double() @ features[0][position].double(), drafter.main_norm)
            key = normed(layer.attention.wkv.decode().double() @ main, layer.attention.kv_norm)
            for pair in range(8):
                turn = complex(np.exp(1j * position * 10000 ** (-2 * pair / 16)))
                rotated = complex(key[48 + 2 * pair], key[49 + 2 * pair]) * turn
                key[48 + 2 * pair], key[49 + 2 * pair] = rotated.real, rotated.imag
            np.testing.assert_allclose(ring[position % 134].numpy(), key.numpy(), rtol=0, atol=1e-4)


def test_drafting_reads_its_own_slot_and_writes_nothing(
    make_drafting_driver: Any, oracle: Mapping[str, Any], drafts: Mapping[str, Any]
) -> None:
    """All bytes of blocks, other slots and unwritten rows are NaN."""
    driver = make_drafting_driver()
    driver.cache.blocks.fill_(0xFF)
    driver.cache.slots.fill_(0xFF)
    sequence = driver.add(oracle["p3_ids"])
    driver.cache.slots[sequence.slot].fill_(0xFF)
    first = int(driver.prefill(sequence)[-1].argmax())
    driver.cache.blocks.fill_(0xFF)
    before = driver.cache.slots.clone()
    found = draft(driver, [sequence], [first], padding=1)
    np.testing.assert_allclose(found.logits[0].numpy(), drafts["p3_draft_logits"], rtol=0, atol=TOLERANCE)
    assert torch.isfinite(found.logits[1]).all()
    assert torch.equal(before, driver.cache.slots)
    assert (driver.cache.blocks == 0xFF).all()


def test_a_sequence_past_the_last_position_does_not_disturb_the_others(
    make_drafting_driver: Any, oracle: Mapping[str, Any], drafts: Mapping[str, Any]
) -> None:
    driver = make_drafting_driver()
    sequences, first = prefilled(driver, oracle, (3, 2))
    sequences[1].done = 512
    found = draft(driver, sequences, first)
    np.testing.assert_allclose(found.logits[0].numpy(), drafts["p3_draft_logits"], rtol=0, atol=TOLERANCE)
    assert torch.isfinite(found.logits[1]).all()
    sequences[1].done = 507
    torch.testing.assert_close(draft(driver, sequences, first).logits[1], found.logits[1])


def test_a_step_writes_the_draft_rings_of_its_rows(
    make_drafting_driver: Any, drafting_engine: Any, oracle: Mapping[str, Any]
) -> None:
    """Verify rows, rejected or not, each in the place of its position; padding rows in slot 0."""
    driver = make_drafting_driver()
    sequence, other = (driver.add(oracle["p300_ids"]) for _ in range(2))
    driver.step([(sequence, 131), (other, 20)])
    before = driver.cache.slots.clone()
    driver.step([(sequence, 6)], padding=[1, 3])
    changed = (before != driver.cache.slots).any(1).nonzero().view(-1).tolist()
    assert changed == sorted({0, sequence.slot})
    for layer in drafting_engine.plan.draft.layers:
        old, new = (
            slots[:, layer.swa.offset :][:, : 134 * 256].view(-1, 134, 256) for slots in (before, driver.cache.slots)
        )
        places = (old != new).any(2)
        assert places[sequence.slot].nonzero().view(-1).tolist() == [0, 1, 2, 131, 132, 133]
        assert places[0].nonzero().view(-1).tolist() == [0, 1, 2]


def test_a_chosen_draft_leads_to_the_next(make_drafting_driver: Any, oracle: Mapping[str, Any]) -> None:
    """Draft k + 1 knows draft k by its Markov logits, and the confidence of k + 1 by the embedding of k."""
    driver = make_drafting_driver()
    sequences, first = prefilled(driver, oracle, (3,))
    likely = draft(driver, sequences, first)
    second = draft(driver, sequences, first, choose=lambda logits, k, rows: logits.topk(k + 2).indices[:, k + 1])
    assert second.ids[0].tolist() == [int(row.topk(k + 2).indices[k + 1]) for k, row in enumerate(second.logits[0])]
    drafter = driver.model.drafter
    embed, head = drafter.markov_embed.float(), drafter.markov_head.decode()
    weights = drafter.confidence_head.decode()[0, 128:]
    torch.testing.assert_close(second.logits[0, 0], likely.logits[0, 0])
    for k in range(1, 5):
        change = embed[second.ids[0, k - 1]] - embed[likely.ids[0, k - 1]]
        torch.testing.assert_close(second.logits[0, k] - likely.logits[0, k], head @ change, rtol=0, atol=TOLERANCE)
        difference = second.confidence_logits[0, k] - likely.confidence_logits[0, k]
        torch.testing.assert_close(difference, weights @ change, rtol=0, atol=TOLERANCE)


def test_an_engine_without_drafts_refuses_to_draft(make_driver: Any) -> None:
    driver = make_driver()
    with pytest.raises(ValueError, match="nextn: 0"):
        draft(driver, [driver.add([5])], [3])


@pytest.mark.parametrize("nextn", [5, 3])
def test_the_compiled_engine_drafts_the_first_of_the_block(
    nextn: int,
    tmp_path: Path,
    make_driver: Any,
    drafting_engine: Any,
    helpers: Any,
    oracle: Mapping[str, Any],
    drafts: Mapping[str, Any],
) -> None:
    engine = compiled_tiny(tmp_path, speculative__nextn=nextn)
    found, expected = engine.plan.draft, drafting_engine.plan.draft
    layers = [helpers.replace(layer, swa=e.swa) for layer, e in zip(found.layers, expected.layers, strict=True)]
    assert helpers.replace(found, layers=tuple(layers)) == helpers.replace(expected, nextn=nextn)

    driver = make_driver(engine, engine.model)
    sequences, first = prefilled(driver, oracle)
    drafted = draft(driver, sequences, first)
    expected_logits = np.stack([drafts[f"p{n}_draft_logits"][:nextn] for n in LENGTHS])
    expected_confidences = np.stack([drafts[f"p{n}_draft_conf"][:nextn] for n in LENGTHS])
    np.testing.assert_allclose(drafted.logits.numpy(), expected_logits, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(drafted.confidence_logits.numpy(), expected_confidences, rtol=0, atol=TOLERANCE)
    for length, transcript in zip(LENGTHS, speculate(driver, sequences, first, 32), strict=True):
        assert transcript.tokens[:32] == oracle[f"p{length}_greedy"].tolist()
        # Until the first round that accepts more than nextn, the rounds are those of the whole block, cut short.
        whole = drafts[f"p{length}_spec_accept"].tolist()
        same = next((i for i, accepted in enumerate(whole) if accepted > nextn), len(whole))
        assert transcript.accepted[: same + 1] == [min(a, nextn) for a in whole[: same + 1]]
