"""The torch form of the split equals the compiled one bit for bit, ties and extremes included."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from verification_policy import Policy

from deepinfer_gen.runtime.speculative.confidence import quantise
from deepinfer_gen.runtime.speculative.verify_split import split_drafts, survivals

KINDS = {
    "ordinary": lambda rng: rng.randrange(65536),
    "high": lambda rng: 65535 - rng.randrange(40),
    "ends": lambda rng: rng.choice([0, 65535]),
    "all certain": lambda rng: 65535,
    "none": lambda rng: 0,
    "few values": lambda rng: rng.choice([0, 1, 32768, 32769, 65535]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, 2, 4])
def test_the_device_splits_as_the_host(index: int, kind: str) -> None:
    rng = random.Random(f"{index} {kind}")
    policy = Policy(index)
    for _ in range(25):
        rows = rng.randint(1, policy.config.max_num_seqs)
        nextn = policy.config.nextn
        confidences = np.array([[KINDS[kind](rng) for _ in range(nextn)] for _ in range(rows)], np.uint16)
        caps = [rng.randint(0, nextn) for _ in range(rows)] if rng.random() < 0.5 else [nextn] * rows
        for count in {0, min(1, sum(caps)), sum(caps), *(rng.randint(0, sum(caps)) for _ in range(5))}:
            host = policy.split(caps, confidences, rows + count)
            given = torch.from_numpy(confidences), torch.tensor(caps, dtype=torch.int32)
            device = split_drafts(*given, torch.tensor(count))
            assert device.dtype == torch.int32
            assert (device + 1).tolist() == host
            assert split_drafts(*given, count).tolist() == device.tolist()


def test_padding_rows_take_nothing() -> None:
    confidences = torch.tensor([[65535, 65535], [0, 0], [65535, 65535]], dtype=torch.int32).to(torch.uint16)
    assert split_drafts(confidences, torch.tensor([0, 2, 0]), 1).tolist() == [0, 1, 0]


def test_survivals_are_products_with_a_shift_each() -> None:
    confidences = torch.tensor([[65535, 65535, 32768], [40000, 3, 65535]], dtype=torch.int32).to(torch.uint16)
    # 65534 x 32768 / 65536 = 32767; 40000 x 3 / 65536 = 1.83; 1 x 65535 / 65536 = 0.99998
    assert survivals(confidences).tolist() == [[65535, 65534, 32767], [40000, 1, 0]]


def test_a_confidence_is_rounded_to_the_nearest_even() -> None:
    # 65535 = 3 x 5 x 17 x 257, so among binary fractions only 1/2 gives a half: 32767.5, whose even neighbour is 32768.
    probabilities = torch.tensor([0.0, 0.5, 0.8, 1.0, 2**-17])
    assert quantise(probabilities).tolist() == [0, 32768, 52428, 65535, 0]
    assert quantise(probabilities).dtype == torch.uint16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quantising_is_exact_for_every_type_of_the_model(dtype: torch.dtype) -> None:
    probabilities = torch.rand(4000, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = [round(Fraction(value) * 65535) for value in probabilities.to(torch.float64).tolist()]
    assert quantise(probabilities).tolist() == expected


def test_a_step_without_rows_has_no_drafts() -> None:
    drafts = split_drafts(torch.zeros((0, 5), dtype=torch.uint16), torch.zeros(0, dtype=torch.int32), 0)
    assert (drafts.shape, drafts.dtype) == ((0,), torch.int32)
