"""The forward pass against the numeric reference: logits of every row, 32 greedy tokens, however the work is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_gen.runtime.model.model import load_model

LENGTHS = (1, 2, 3, 127, 128, 129, 300)
TOLERANCE = 1e-4


def chunked_prefill(driver: Any, sequences: list[Any], chunk: int) -> list[np.ndarray]:
    """All prompts together, ``chunk`` tokens of each a step; logits of every row."""
    parts: list[list[torch.Tensor]] = [[] for _ in sequences]
    while rows := [(s, min(chunk, len(s.ids) - s.done)) for s in sequences if s.done < len(s.ids)]:
        logits = driver.step(rows).split([count for _, count in rows])
        for (sequence, _), part in zip(rows, logits, strict=True):
            parts[sequences.index(sequence)].append(part)
    return [torch.cat(p).numpy() for p in parts]


@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_and_greedy_alone(length: int, make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    sequence = driver.add(oracle[f"p{length}_ids"])
    logits = driver.prefill(sequence).numpy()
    np.testing.assert_allclose(logits, oracle[f"p{length}_logits"], rtol=0, atol=TOLERANCE)
    tokens = driver.greedy([sequence], [int(logits[-1].argmax())], 32)[0]
    assert tokens == oracle[f"p{length}_greedy"].tolist()


@pytest.mark.parametrize("chunk", [6, 64, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 7, 50, 300))])
def test_prefill_in_chunks_and_greedy_in_one_batch(chunk: int, make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    # Earlier requests leave their bytes in blocks and slots and their blocks in another order.
    for length in (300, 3, 128):
        earlier = driver.add(oracle[f"p{length}_ids"][::-1])
        driver.prefill(earlier)
        driver.release(earlier)
    sequences = [driver.add(oracle[f"p{n}_ids"]) for n in LENGTHS]
    logits = chunked_prefill(driver, sequences, chunk)
    for length, found in zip(LENGTHS, logits, strict=True):
        np.testing.assert_allclose(found, oracle[f"p{length}_logits"], rtol=0, atol=TOLERANCE)
    greedy = driver.greedy(sequences, [int(rows[-1].argmax()) for rows in logits], 32)
    assert greedy == [oracle[f"p{n}_greedy"].tolist() for n in LENGTHS]


def test_greedy_runs_past_the_end_token(oracle: Mapping[str, Any]) -> None:
    assert 1 in oracle["p1_greedy"][:-1], "the reference must contain the end token for the tests above to pass it"


def test_decode_logits(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    sequence = driver.add(oracle["p300_ids"])
    driver.prefill(sequence)
    sequence.ids += oracle["p300_greedy"].tolist()
    for row in range(31):
        logits = driver.step([(sequence, 1)])[0].numpy()
        np.testing.assert_allclose(logits, oracle["p300_greedy_logits"][row + 1], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("block", [2, 8, 128])
def test_other_block_sizes(
    block: int, make_driver: Any, helpers: Any, oracle: Mapping[str, Any], checkpoint: Any
) -> None:
    engine = helpers.tiny_engine(oracle, block=block, blocks=1 + 400 // block)
    moved = load_model(engine.plan, helpers.kernel_table(helpers.tiles), checkpoint)
    driver = make_driver(engine, moved)
    logits = driver.prefill(driver.add(oracle["p300_ids"]), 64).numpy()
    np.testing.assert_allclose(logits, oracle["p300_logits"], rtol=0, atol=TOLERANCE)


def test_moved_state_regions_and_other_tiles_change_nothing(
    make_driver: Any, helpers: Any, oracle: Mapping[str, Any], checkpoint: Any
) -> None:
    engine = helpers.tiny_engine(oracle, shift=128)
    moved = load_model(engine.plan, helpers.kernel_table(helpers.small_tiles), checkpoint)
    driver = make_driver(engine, moved)
    sequence = driver.add(oracle["p300_ids"])
    logits = driver.prefill(sequence, 90).numpy()
    np.testing.assert_allclose(logits, oracle["p300_logits"], rtol=0, atol=TOLERANCE)
    assert driver.greedy([sequence], [int(logits[-1].argmax())], 8)[0] == oracle["p300_greedy"][:8].tolist()


def test_another_kv_source_changes_the_logits(
    make_driver: Any, helpers: Any, oracle: Mapping[str, Any], engine: Any, checkpoint: Any
) -> None:
    layers = list(engine.plan.layers)
    layers[5] = helpers.replace(
        layers[5], kv_source=2, index_source=2, main=layers[2].main, index_keys=layers[2].index_keys
    )
    changed = load_model(
        helpers.replace(engine.plan, layers=tuple(layers)), helpers.kernel_table(helpers.tiles), checkpoint
    )
    driver = make_driver(engine, changed)
    logits = driver.prefill(driver.add(oracle["p129_ids"])).numpy()
    assert np.abs(logits - oracle["p129_logits"]).max() > 0.1


def test_only_the_asked_tokens_have_logits(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    sequence = driver.add(oracle["p128_ids"])
    batch = driver.batch([(sequence, 128)])
    logits = driver.model(batch, driver.cache, torch.tensor([127, 3]))
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(logits.numpy(), oracle["p128_logits"][[127, 3]], rtol=0, atol=TOLERANCE)
    logits.masked_fill_(logits > 0, 0.0)  # a sampler changes them in place
