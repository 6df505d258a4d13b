"""Philox against the published vectors, and the keys of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.runtime.random_numbers import Purpose, mix_seed, philox_4x32_10, request_seeds, uniforms

# From kat_vectors of the Random123 distribution: counter, key, result.
PUBLISHED = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def test_published_vectors() -> None:
    counters, keys, results = (np.array(column, np.uint64).T for column in zip(*PUBLISHED, strict=True))
    np.testing.assert_array_equal(philox_4x32_10(counters, keys), results)


@pytest.mark.parametrize("change", ["seed", "round", "purpose", "offset", "branch"])
def test_every_part_of_the_key_changes_the_number(change: str) -> None:
    key = {"seed": 1, "round": 1, "purpose": 1, "offset": 1, "branch": 1}

    def draw(k: dict[str, int]) -> float:
        purpose = Purpose(k["purpose"])
        return float(
            uniforms([k["seed"]], [k["round"]], purpose=purpose, offset=[k["offset"]], branch=[k["branch"]])[0]
        )

    assert draw(key) != draw({**key, change: 2})
    assert draw(key) == draw(dict(key))


def test_the_upper_half_of_a_seed_counts() -> None:
    first, second = uniforms([5, 5 + 2**32], [0, 0], purpose=Purpose.DRAFT)
    assert first != second


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=9))
def test_a_number_does_not_depend_on_its_batch(keys: list[tuple[int, int]]) -> None:
    together = uniforms([s for s, _ in keys], [r for _, r in keys], purpose=Purpose.ACCEPT)
    alone = [uniforms([s], [r], purpose=Purpose.ACCEPT)[0] for s, r in keys]
    assert together.tolist() == alone
    assert all(0 <= u < 1 for u in alone)


def test_numbers_are_uniform() -> None:
    numbers = uniforms(np.full(1 << 16, 9), np.arange(1 << 16), purpose=Purpose.RESIDUAL_OR_BONUS)
    counts = np.histogram(numbers, bins=64, range=(0, 1))[0]
    chi_square = float(((counts - 1024) ** 2 / 1024).sum())
    assert chi_square < 103.4  # 63 degrees of freedom, one in a thousand


def test_request_seeds() -> None:
    seeds = request_seeds(0, [None, 7, 7, None, 8], 10, batch_invariant=False)
    assert seeds[1] == 7
    assert seeds[4] == 8
    assert len(set(seeds)) == 5
    assert seeds[2] == mix_seed(7, 2)
    assert seeds[0] == request_seeds(0, [None], 10, batch_invariant=False)[0]
    assert seeds[0] != request_seeds(1, [None], 10, batch_invariant=False)[0]
    assert request_seeds(0, [7, 7], 0, batch_invariant=True) == [7, 7]
    assert request_seeds(0, [-3], 0, batch_invariant=False) == [2**64 - 3]
