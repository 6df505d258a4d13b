"""Engram: hashes against Python's integers, and rows against the reference's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_gen.codegen.derive.primes import primes_after
from deepinfer_gen.runtime.model.engram import ngram_classes, table_rows

# Layer of the release to its multipliers, and how many primes the layers before it take.
MULTIPLIERS = {
    1: ((76632096046245, 4839876093313, 35959672319349, 73987337458391), 0),
    14: ((67716810739261, 51510806800915, 30921347202721, 82619226485591), 24),
}


@pytest.mark.parametrize("chunk", [1, 2, 7, 300])
def test_trap_20_rows_do_not_depend_on_the_chunks(
    chunk: int, model: Any, make_driver: Any, oracle: Mapping[str, Any]
) -> None:
    driver = make_driver()
    sequence = driver.add(oracle["p300_ids"][:60])
    found: list[list[torch.Tensor]] = [[], []]
    while sequence.done < 60:
        count = min(chunk, 60 - sequence.done)
        batch = driver.batch([(sequence, count)])
        ngrams = ngram_classes(batch, model.token_map, model.token_map[2])
        for rows, layer in zip(found, (1, 4), strict=True):
            rows.append(model.layers[layer].engram.rows(ngrams))
        sequence.done += count
    for i in range(2):
        np.testing.assert_array_equal(torch.cat(found[i]).numpy(), oracle["engram_rows_p300"][:60, i])


def rows_of(classes: Sequence[int], multipliers: Sequence[int], primes: Sequence[Sequence[int]],
            offsets: Sequence[Sequence[int]]) -> list[int]:  # fmt: skip
    """The hash in Python's integers, each product cut to the 64 bits of a signed word."""

    def word(value: int) -> int:
        return (value + 2**63) % 2**64 - 2**63

    found, rolling = [], word(classes[0] * multipliers[0])
    for order, (moduli, starts) in enumerate(zip(primes, offsets, strict=True), start=1):
        rolling ^= word(classes[order] * multipliers[order])
        found += [rolling % p + o for p, o in zip(moduli, starts, strict=True)]
    return found


def hashed(classes: Sequence[Sequence[int]], *tables: Any) -> list[list[int]]:
    return table_rows(torch.tensor(classes), *(torch.tensor(t) for t in tables)).tolist()


def released_tables(layer: int) -> tuple[tuple[int, ...], list[list[int]], list[list[int]]]:
    """Multipliers, primes and offsets of the release's layer 1 or 14."""
    multipliers, skipped = MULTIPLIERS[layer]
    primes = list(islice(primes_after(16_000_000 - 1), skipped, skipped + 24))
    offsets = [sum(primes[:i]) for i in range(24)]
    return multipliers, [primes[i : i + 8] for i in (0, 8, 16)], [offsets[i : i + 8] for i in (0, 8, 16)]


def test_trap_18_hashes_are_exact_in_64_bits(model: Any) -> None:
    """Products beyond 2^53 against Python's integers."""
    engram = model.layers[1].engram
    classes = [258, 257, 3, 255]
    products = [c * m for c, m in zip(classes, engram.multipliers.tolist(), strict=True)]
    assert max(products) > 2**53
    tables = [t.tolist() for t in (engram.multipliers, engram.primes, engram.offsets)]
    assert engram.rows(torch.tensor([classes])).tolist() == [rows_of(classes, *tables)]


@pytest.mark.parametrize("layer", [1, 14])
def test_trap_18_released_hashes_at_the_largest_classes(layer: int) -> None:
    """Products of up to 63 bits; what 32-bit or float64 products give lies in the same tables and is another row."""
    tables = released_tables(layer)
    multipliers, primes, offsets = tables
    classes = [99_091, 99_091, 0, 99_091]
    right = rows_of(classes, *tables)
    assert hashed([classes], *tables) == [right]
    assert hashed([[99_091] * 4, [0] * 4, [2] * 4], *tables) == [rows_of([c] * 4, *tables) for c in (99_091, 0, 2)]
    assert 2**62 < max(99_091 * m for m in multipliers) < 2**63
    for other in (
        [int(float(c) * float(m)) for c, m in zip(classes, multipliers, strict=True)],
        [c * m % 2**31 for c, m in zip(classes, multipliers, strict=True)],
    ):
        wrong = rows_of(other, [1] * 4, primes, offsets)
        assert all(0 <= row < offsets[2][7] + primes[2][7] for row in wrong)
        assert not set(wrong) & set(right)


WORDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1, 2**62, 2**31, 2**32 + 1])


@settings(deadline=None)
@given(
    classes=st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4),
    multipliers=st.tuples(WORDS, WORDS, WORDS),
    primes=st.lists(st.integers(1, 2**40), min_size=4, max_size=4),
)
def test_trap_18_any_products_wrap_and_stay_inside_the_table(
    classes: list[tuple[int, ...]], multipliers: tuple[int, ...], primes: list[int]
) -> None:
    """Beyond what valid maps reach: products wrap, and remainders of negative hashes are not negative."""
    offsets = [sum(primes[:i]) for i in range(4)]
    tables = (multipliers, [primes[:2], primes[2:]], [offsets[:2], offsets[2:]])
    found = hashed(classes, *tables)
    assert found == [rows_of(c, *tables) for c in classes]
    for row in found:
        assert all(o <= r < o + p for r, o, p in zip(row, offsets, primes, strict=True))


def test_no_valid_map_reaches_a_negative_hash(model: Any) -> None:
    """The largest class times the largest multiplier ends below 2^63, so that no hash has its sign bit set."""
    for classes in (1, 2, 259, 99_092, 2**30 - 1):
        bound = (2**63 - 1) // classes // 2
        assert (classes - 1) * (2 * bound - 1) < 2**63
    for layer in (1, 4):
        assert 258 * int(model.layers[layer].engram.multipliers.max()) < 2**63


@pytest.mark.parametrize("slope", [2e-8, -2e-8, 0.0, 1e-3])
def test_the_floor_of_the_gate(slope: float, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """sigmoid(sign(dot) * sqrt(max(|dot|, 1e-6))), of streams and keys whose scalar product is known."""
    engram = model.layers[1].engram
    streams = torch.zeros(1, 4, 128)
    streams[..., 0] = 1
    pair = torch.ones(1, 5, 128)
    pair[:, :4] = 0
    pair[:, :4, :2] = torch.tensor([slope, 1.0])
    monkeypatch.setattr(engram, "operators", SimpleNamespace(engram_gather=lambda *_: None, linear=lambda *_: pair))
    gates = engram(streams, torch.zeros(1, 4, dtype=torch.int64))[0, :, 1].tolist()
    for gate, q, k in zip(gates, engram.q_weight[:, 0].tolist(), engram.k_weight[:, 0].tolist(), strict=True):
        dot = q * k * slope * math.sqrt(128)
        exponent = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot) if dot else 0.0
        assert gate == pytest.approx(1 / (1 + math.exp(-exponent)), abs=1e-6)
