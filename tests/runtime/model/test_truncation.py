"""YOCO prefill truncation against the reference's, in both modes, however prompts are cut and batched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_gen.runtime.model.truncation import live_rows

from .conftest import ORACLE

MODES = ("compact", "mask")
VARIANTS = ((6, 140, 300), (6, 128, 300), (6, 128, 129), (7, 133, 300))
"""Cut, kept rows and prompt length of the reference's variants."""
LENGTHS = (300, 1, 129, 128, 3)
TOLERANCE, NOISE = 1e-4, 2e-5
"""Against the reference; between two ways to cut the same work (float32 sums in another order)."""

MakeDriver = Callable[..., Any]


@pytest.fixture(scope="module")
def replay() -> Mapping[str, Any]:
    with np.load(ORACLE / "replay_f32nq.npz") as data:
        return dict(data)


def kept_of(rows: list[tuple[Any, int]], keep: int) -> torch.Tensor:
    """Tokens of a step at the last ``keep`` positions of their prompts, or behind these; plain loops."""
    tokens, start = [], 0
    for sequence, count in rows:
        floor = max(0, sequence.prompt - keep)
        tokens += [start + i for i in range(count) if sequence.done + i >= floor]
        start += count
    return torch.tensor(tokens, dtype=torch.int64)


def prefill(driver: Any, sequences: list[Any], keep: int, chunk: int) -> list[np.ndarray]:
    """All prompts together, ``chunk`` tokens of each a step; the logits of each one's kept rows."""
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    while rows := [(s, min(chunk, len(s.ids) - s.done)) for s in sequences if s.done < len(s.ids)]:
        wanted = kept_of(rows, keep)
        counts = [len(kept_of([row], keep)) for row in rows]
        logits = driver.step(rows, outputs=wanted).split(counts)
        for (sequence, _), part in zip(rows, logits, strict=True):
            found[sequences.index(sequence)].append(part)
    return [torch.cat(parts).numpy() for parts in found]


def decode_logits(driver: Any, sequence: Any, tokens: list[int]) -> np.ndarray:
    sequence.ids += tokens
    return np.stack([driver.step([(sequence, 1)])[0].numpy() for _ in tokens])


@pytest.mark.parametrize(("cut", "keep", "length"), VARIANTS)
@pytest.mark.parametrize("mode", MODES)
def test_trap_41_kept_rows_and_greedy_tokens_of_the_reference(
    mode: str, cut: int, keep: int, length: int, truncated: MakeDriver, oracle: Mapping[str, Any],
    replay: Mapping[str, Any],
) -> None:  # fmt: skip
    """Rings and blocks are full of NaN before: a window that reaches below the floor reads them."""
    name = f"p{length}_replay_cut{cut}_keep{keep}"
    driver = truncated(mode, cut, keep)
    sequence = driver.add(oracle[f"p{length}_ids"])
    (logits,) = prefill(driver, [sequence], keep, length)
    np.testing.assert_allclose(logits, replay[f"{name}_logits"], rtol=0, atol=TOLERANCE)
    greedy = driver.greedy([sequence], [int(logits[-1].argmax())], 32)[0]
    assert greedy == replay[f"{name}_greedy"].tolist()


def test_the_variants_differ_from_each_other_and_from_a_full_prefill(
    oracle: Mapping[str, Any], replay: Mapping[str, Any]
) -> None:
    last = [oracle["p300_logits"][-1]]
    last += [replay[f"p300_replay_{v}_logits"][-1] for v in ("cut6_keep140", "cut6_keep128", "cut7_keep133")]
    for i, one in enumerate(last):
        assert all(np.abs(one - other).max() > 100 * TOLERANCE for other in last[:i])


@pytest.mark.parametrize(("chunk", "tolerance"), [(300, 1e-5), (90, NOISE)])
@pytest.mark.parametrize(("cut", "keep"), [(6, 140), (7, 133)])
def test_compact_equals_mask(
    cut: int, keep: int, chunk: int, tolerance: float, truncated: MakeDriver, oracle: Mapping[str, Any]
) -> None:
    """Decode rows too; the first of them still look back to the floor."""
    found = []
    for mode in MODES:
        driver = truncated(mode, cut, keep)
        sequence = driver.add(oracle["p300_ids"])
        prompt = prefill(driver, [sequence], keep, chunk)
        found.append(np.concatenate([*prompt, decode_logits(driver, sequence, list(range(5, 25)))]))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=tolerance)


@pytest.mark.parametrize("chunk", [64, 128, 160, *(pytest.param(c, marks=pytest.mark.long) for c in (1, 7))])
@pytest.mark.parametrize("mode", MODES)
def test_trap_42_chunks_equal_one_shot(
    mode: str, chunk: int, truncated: MakeDriver, oracle: Mapping[str, Any], replay: Mapping[str, Any]
) -> None:
    """Of 300 tokens 160 are dropped: whole chunks keep no row, and the last one (44 of 128) is below a window."""
    driver = truncated(mode)
    sequence = driver.add(oracle["p300_ids"])
    (logits,) = prefill(driver, [sequence], 140, chunk)
    np.testing.assert_allclose(logits, replay["p300_replay_cut6_keep140_logits"], rtol=0, atol=TOLERANCE)
    greedy = driver.greedy([sequence], [int(logits[-1].argmax())], 6)[0]
    assert greedy == replay["p300_replay_cut6_keep140_greedy"][:6].tolist()


def test_a_ragged_batch_equals_each_alone(truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    """Prompts of 1 to 300 tokens, so that a step has rows that lose all, some and none of their tokens."""
    alone = []
    for length in LENGTHS:
        driver = truncated("compact", 6, 128)
        sequence = driver.add(oracle[f"p{length}_ids"])
        (logits,) = prefill(driver, [sequence], 128, length)
        alone.append((logits, driver.greedy([sequence], [int(logits[-1].argmax())], 6)[0]))
    for chunk in (50, 300):
        together = truncated("compact", 6, 128)
        sequences = [together.add(oracle[f"p{n}_ids"]) for n in LENGTHS]
        batched = prefill(together, sequences, 128, chunk)
        greedy = together.greedy(sequences, [int(rows[-1].argmax()) for rows in batched], 6)
        for (logits, tokens), rows, found in zip(alone, batched, greedy, strict=True):
            np.testing.assert_allclose(rows, logits, rtol=0, atol=NOISE)
            assert found == tokens


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129])
def test_prompts_up_to_keep_are_not_touched(length: int, truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    driver = truncated("compact", 6, 129)
    sequence = driver.add(oracle[f"p{length}_ids"])
    (logits,) = prefill(driver, [sequence], 129, 64)
    np.testing.assert_allclose(logits, oracle[f"p{length}_logits"], rtol=0, atol=TOLERANCE)
    greedy = driver.greedy([sequence], [int(logits[-1].argmax())], 8)[0]
    assert greedy == oracle[f"p{length}_greedy"][:8].tolist()


def test_windows_begin_at_the_floor_of_each_row(truncated: MakeDriver) -> None:
    """A chunk across the floor of 160, one of a short prompt, one far below its floor; then decode and padding."""
    driver = truncated()
    long, short, early = driver.add(range(300)), driver.add(range(10)), driver.add(range(300))
    long.done = 150
    batch = driver.batch([(long, 30), (short, 10), (early, 5)])
    live = live_rows(batch, driver.model.plan.yoco)
    assert batch.prefills
    assert live.floor.tolist() == [160, 0, 160]
    assert live.batch.positions.tolist() == [*range(160, 180), *range(10)]
    assert (live.batch.q_start.tolist(), live.batch.q_len.tolist()) == ([0, 20, 30], [20, 10, 0])
    assert live.places(torch.tensor([39, 10])).tolist() == [29, 0]
    step = driver.model.begin(batch, driver.cache).truncated(live)
    index = step.ring(driver.cache.slot_rows(driver.model.plan.layers[6].swa), 128)
    assert index.valid.sum(1).tolist() == [*range(1, 21), *range(1, 11)]
    long.ids.append(9)
    long.done = 300
    assert not driver.batch([(long, 1)], padding=[1]).prefills
