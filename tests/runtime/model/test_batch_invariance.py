"""``determinism.batch_invariant``: a request alone, beside 31 others, and cut into chunks gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from compiled_tiny import CompiledTiny, compiled_tiny
from draft_and_verify import draft

POLICIES = ("float32_unquantized", "float32", "bf16", "released")
PROMPT, GENERATED = 21, 3


def bits(driver: Any, ids: list[int], others: list[list[int]], chunk: int) -> list[np.ndarray]:
    """Logits of a request's prompt and of decode steps behind it, beside ``others``, all ``chunk`` tokens a step."""
    sequences = [driver.add(i) for i in (*others[:5], ids, *others[5:])]
    own = sequences[min(5, len(others))]
    parts = []
    for _ in range(GENERATED + 1):
        while rows := [(s, min(chunk, len(s.ids) - s.done)) for s in sequences if s.done < len(s.ids)]:
            logits = driver.step(rows).split([count for _, count in rows])
            parts += [part for (s, _), part in zip(rows, logits, strict=True) if s is own]
        for sequence in sequences:
            sequence.ids.append(int(parts[-1][-1].argmax()) if sequence is own else 7)
    return [part.numpy() for part in parts]


def runs(compiled: CompiledTiny, make_driver: Any, helpers: Any) -> list[np.ndarray]:
    """The request alone at once, alone in chunks of 5, and as one of 32; each run's logits joined."""
    generator = np.random.default_rng(0)
    ids = generator.integers(3, 500, PROMPT).tolist()
    others = [generator.integers(3, 500, 1 + i % 7).tolist() for i in range(31)]
    found = []
    for beside, chunk in (([], PROMPT), ([], 5), (others, 8)):
        driver = make_driver(helpers.TinyEngine(compiled.plan, compiled.layout), compiled.model)
        found.append(np.concatenate(bits(driver, ids, beside, chunk)))
    return found


@pytest.fixture(scope="module")
def invariant(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def compile_(policy: str, **fields: Any) -> CompiledTiny:
        wide = {"limits__max_num_seqs": 40, "numerics__policy": policy, **fields}
        return compiled_tiny(tmp_path_factory.mktemp("invariant"), determinism__batch_invariant=True, **wide)

    return compile_


@pytest.mark.parametrize("policy", [POLICIES[0], *(pytest.param(p, marks=pytest.mark.long) for p in POLICIES[1:])])
def test_the_bits_of_a_request(policy: str, invariant: Any, make_driver: Any, helpers: Any) -> None:
    alone, chunked, together = runs(invariant(policy), make_driver, helpers)
    assert alone.shape == (PROMPT + GENERATED, 512)
    assert np.array_equal(alone.view(np.int32), chunked.view(np.int32))
    assert np.array_equal(alone.view(np.int32), together.view(np.int32))


@pytest.mark.parametrize("policy", POLICIES)
def test_without_it_the_batch_shows(policy: str, invariant: Any, make_driver: Any, helpers: Any) -> None:
    compiled = invariant(policy)
    compiled.model.plan = replace(compiled.plan, batch_invariant=False)
    alone, chunked, together = runs(compiled, make_driver, helpers)
    assert not np.array_equal(alone, chunked) or not np.array_equal(alone, together)


def test_the_reference_logits(invariant: Any, make_driver: Any, helpers: Any, oracle: Mapping[str, Any]) -> None:
    """Token by token is the same model; only the asked tokens have logits, in the asked order."""
    compiled = invariant("float32_unquantized")
    driver = make_driver(helpers.TinyEngine(compiled.plan, compiled.layout), compiled.model)
    sequence = driver.add(oracle["p128_ids"])
    batch = driver.batch([(sequence, 128)], padding=[1, 1])
    logits = compiled.model(batch, driver.cache, torch.tensor([127, 3]))
    np.testing.assert_allclose(logits.numpy(), oracle["p128_logits"][[127, 3]], rtol=0, atol=1e-4)


def test_truncated_prompts(invariant: Any, make_driver: Any, helpers: Any, oracle: Mapping[str, Any]) -> None:
    """Kept rows are known by position, however few tokens a pass has; a pass may keep none."""
    compiled = invariant("float32_unquantized", yoco__mode="compact", yoco__keep_tokens=140)
    found = []
    for first, batch_invariant in ((150, True), (70, True), (70, False)):
        compiled.model.plan = replace(compiled.plan, batch_invariant=batch_invariant)
        driver = make_driver(helpers.TinyEngine(compiled.plan, compiled.layout), compiled.model)
        sequence = driver.add(oracle["p300_ids"][:160])
        driver.step([(sequence, first)], outputs=torch.arange(0))
        count = 160 - first
        found.append(driver.step([(sequence, count)], outputs=torch.arange(count - 10, count)))
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-4)


def test_drafts(invariant: Any, make_driver: Any, helpers: Any, oracle: Mapping[str, Any]) -> None:
    compiled = invariant("float32_unquantized", speculative__nextn=5)
    found = []
    for lengths in ((3,), (1, 2, 3, 127)):
        driver = make_driver(helpers.TinyEngine(compiled.plan, compiled.layout), compiled.model)
        sequences = [driver.add(oracle[f"p{n}_ids"][:30]) for n in lengths]
        for sequence in sequences:
            driver.prefill(sequence)
        drafts = draft(driver, sequences, [5] * len(sequences))
        row = lengths.index(3)
        found.append([drafts.logits[row].clone(), drafts.confidence_logits[row].clone()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
