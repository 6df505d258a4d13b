"""The shipped model is the trained one: the form that training ran costs a text the bits that the engine pays."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from network import Backbone
from paged_run import PagedModel, compile_plan
from torch import Tensor
from training_form import exact_caches, network_of

from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

ROOT = Path(__file__).parents[2]
SHIPPED = preset_folder("tiny-v41-code")
TEXTS = ("src/deepinfer_gen/formula.py", "tests/oracle/layout_recompute.py")
TOKENS = 640
POLICIES = ("float32_unquantized", "float32", "released")


@pytest.fixture(scope="module")
def texts() -> list[Tensor]:
    """Sources that the model has not seen, each int64 [TOKENS + 1]."""
    read = [Tokenizer(SHIPPED).encode((ROOT / text).read_text(encoding="utf-8")) for text in TEXTS]
    return [torch.tensor(ids)[: TOKENS + 1] for ids in read]


@pytest.fixture(scope="module")
def trained() -> Backbone:
    """The network of training with the decoded checkpoint, which rounds weights and caches as it did then."""
    return network_of(SHIPPED)[0]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PagedModel]:
    """The product's modules over paged caches, under each policy."""
    folder = tmp_path_factory.mktemp("plans")
    shutil.copy(SHIPPED / "config.json", folder)
    return {
        policy: PagedModel(compile_plan(folder, tokens=TOKENS, block=32, numerics__policy=policy), SHIPPED)
        for policy in POLICIES
    }


@pytest.fixture(scope="module")
def engine_bits(texts: list[Tensor], engines: dict[str, PagedModel]) -> dict[str, float]:
    with torch.inference_mode():
        return {
            policy: bits(texts, lambda ids, paged=paged: paged.logits(ids.tolist(), [TOKENS]))
            for policy, paged in engines.items()
        }


def bits(texts: list[Tensor], logits_of: Callable[[Tensor], Tensor]) -> float:
    """Bits of all tokens but the first of each text."""
    costs = [torch.nn.functional.cross_entropy(logits_of(ids[:-1]).double(), ids[1:], reduction="sum") for ids in texts]
    return float(sum(costs)) / math.log(2)


@pytest.mark.parametrize(
    ("policy", "caches", "tolerance"),
    [("float32_unquantized", exact_caches, 2e-6), ("float32", nullcontext, 1e-3)],
)
def test_same_bits(
    policy: str,
    caches: Callable[[], AbstractContextManager[None]],
    tolerance: float,
    trained: Backbone,
    texts: list[Tensor],
    engine_bits: dict[str, float],
) -> None:
    """To float32's accuracy where caches are not rounded; another order of a sum moves steps of those that are, which
    changes the cost of a file at random by some 3e-4 of it.
    """
    with caches(), torch.inference_mode():
        expected = bits(texts, lambda ids: trained(ids[None])[0][0])
    assert engine_bits[policy] == pytest.approx(expected, rel=tolerance)


def test_formats_cost_little(engine_bits: dict[str, float]) -> None:
    """It was trained with rounded caches: they, and rounded activations, change its bits by less than 1 %."""
    exact, *rounded = (engine_bits[policy] for policy in POLICIES)
    for cost in rounded:
        assert cost == pytest.approx(exact, rel=0.01)
        assert cost != pytest.approx(exact, rel=1e-5)


@torch.inference_mode()
def test_same_rounding(trained: Backbone, texts: list[Tensor], engines: dict[str, PagedModel]) -> None:
    """At the first tokens of a text hardly a step has moved: the same logits; without rounding they are others."""
    begin, window = 8, 128

    def median(logits: list[Tensor]) -> float:
        both = zip(logits, expected, strict=True)
        return float(torch.cat([(ours - theirs).abs().amax(1) for ours, theirs in both]).median())

    expected = [engines["float32"].logits(ids[:begin].tolist(), [begin]) for ids in texts]
    assert median([trained(ids[None, :window])[0][0, :begin] for ids in texts]) < 1e-4
    with exact_caches():
        assert median([trained(ids[None, :window])[0][0, :begin] for ids in texts]) > 0.05
