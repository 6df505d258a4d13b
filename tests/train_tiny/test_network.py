"""The network that training runs gives what the product's modules give over paged caches, with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from attention import candidate_mask, choose
from compiled_tiny import CompiledTiny, compiled_tiny
from draft_and_verify import draft
from drafter import Blocks, Drafter
from network import Backbone
from paged_driver import Driver
from torch import Tensor
from training_form import exact_caches, network_of

from deepinfer_gen.specs.presets import preset_folder

LENGTH = 384
ANCHORS = (1, 60, 128, 129, 250, 378)
"""Behind less than a window, exactly one, more; the last has just room for a block and the token after it."""

POLICIES = {"float32_unquantized": exact_caches, "float32": nullcontext}


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(5, 500, (LENGTH,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> tuple[Backbone, Drafter]:
    return network_of(preset_folder("tiny-v41"))


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(policy: str, tmp_path_factory: pytest.TempPathFactory) -> CompiledTiny:
    fields: dict[str, Any] = {"numerics__policy": policy, "speculative__nextn": 5}
    return compiled_tiny(tmp_path_factory.mktemp(policy), **fields)


@pytest.fixture(scope="module")
def passed(policy: str, network: tuple[Backbone, Drafter], ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits [T, V] and features [1, T, targets * d] of the network; caches are as the policy has them."""
    with POLICIES[policy](), torch.no_grad():
        logits, features, _ = network[0](ids[None])
        yield logits[0], features


@torch.no_grad()
def test_backbone(policy: str, engine: CompiledTiny, passed: tuple[Tensor, Tensor], ids: Tensor) -> None:
    """384 tokens: every kind of layer, a selection of 24 among up to 384 entries, a filter that keeps 48 of them.

    Quantised caches turn a difference in the last bit into one of a step, so few tokens differ by more.
    """
    driver = Driver(engine.model, engine.layout)
    expected = driver.prefill(driver.add(ids.tolist()))
    differences = (passed[0] - expected).abs().amax(1)
    assert float(expected.std()) > 0.5
    if policy == "float32_unquantized":
        assert float(differences.max()) < 1e-4
    else:
        assert float(differences.median()) < 1e-4
        assert float(differences.quantile(0.9)) < 0.05
        assert torch.equal(passed[0].argmax(1), expected.argmax(1))


@torch.no_grad()
def test_the_unquantised_network_is_another_one(network: tuple[Backbone, Drafter], ids: Tensor) -> None:
    """What the policies differ by is larger than what either is compared to."""
    rounded = network[0](ids[None])[0]
    with exact_caches():
        exact = network[0](ids[None])[0]
    assert float((rounded - exact).abs().amax(2).median()) > 0.01


@torch.no_grad()
def test_drafter(
    policy: str,
    engine: CompiledTiny,
    network: tuple[Backbone, Drafter],
    passed: tuple[Tensor, Tensor],
    ids: Tensor,
) -> None:
    """Blocks behind several anchors at once; the token before each draft is the draft before it, as when serving."""
    driver = Driver(engine.model, engine.layout)
    sequences = [driver.add(ids[:anchor].tolist()) for anchor in ANCHORS]
    for sequence in sequences:
        driver.prefill(sequence)
    expected = draft(driver, sequences, [int(ids[anchor]) for anchor in ANCHORS])
    rows = ids.repeat(len(ANCHORS), 1)
    for row, anchor, guessed in zip(rows, ANCHORS, expected.ids, strict=True):
        row[anchor + 1 : anchor + 1 + len(guessed)] = guessed
    features = passed[1].expand(len(ANCHORS), -1, -1)
    backbone, drafter = network
    anchors = torch.tensor(ANCHORS).unsqueeze(1)
    blocks: Blocks = drafter(rows, features, anchors, backbone.embed.weight, backbone.head.weight)
    logits = (blocks.logits.squeeze(1) - expected.logits).abs().amax(2)
    confidences = (blocks.confidence_logits.squeeze(1) - expected.confidence_logits).abs()
    assert float(expected.logits.std()) > 0.5
    if policy == "float32_unquantized":
        assert float(logits.max()) < 1e-4
        assert float(confidences.max()) < 1e-4
    else:
        assert float(logits.median()) < 1e-3
        assert float(confidences.median()) < 1e-3
        assert torch.equal(blocks.logits.squeeze(1).argmax(2), expected.ids)


def test_candidates_by_hand() -> None:
    """Blocks of two, the best two a row: the newest visible one always, then the one with the largest score."""
    hidden = -torch.inf
    scores = torch.tensor([[5.0, hidden, hidden, hidden, hidden, hidden], [1.0, 9.0, 7.0, 8.0, 0.0, hidden]])
    visible = torch.tensor([1, 5])
    kept = candidate_mask(scores.unsqueeze(0), visible, blocks=2, size=2)[0]
    assert kept[1].tolist() == [True, True, False, False, True, True]
    assert kept[0, :2].tolist() == [True, True]
    chosen = choose(scores.masked_fill(~kept, hidden), 2)
    assert chosen.tolist() == [[True] + [False] * 5, [True, True, False, False, False, False]]
