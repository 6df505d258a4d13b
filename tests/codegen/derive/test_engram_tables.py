"""Engram tables: the released numbers, and any model's primes and multipliers from the definitions of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.derive.engram import multipliers
from deepinfer_gen.diagnostics import InputError

ENGINE_FORMATS = {"kv.main_format": "fp32", "kv.index_format": "fp32", "kv.swa_format": "fp32"}
RELEASED = {
    # Layer: first and last prime, rows, multipliers.
    1: (16_000_057, 16_000_463, 384_006_168, (76632096046245, 4839876093313, 35959672319349, 73987337458391)),
    14: (16_000_477, 16_000_889, 384_016_682, (67716810739261, 51510806800915, 30921347202721, 82619226485591)),
}


def tables_of(layers: int, orders: int, heads: int, least: int) -> Iterator[list[int]]:
    """The definition in plain loops: every order of every layer searches from the start and skips what was taken."""
    seen: set[int] = set()
    for _ in range(layers):
        primes = []
        for _ in range(orders):
            candidate = least - 1
            for _ in range(heads):
                candidate += 1
                while candidate in seen or any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
                    candidate += 1
                seen.add(candidate)
                primes.append(candidate)
        yield primes


@pytest.mark.parametrize("layer", RELEASED)
def test_released_tables(make, layer):
    plan = derive(make())
    primes, offsets = plan.integers(f"engram.{layer}.primes"), plan.integers(f"engram.{layer}.offsets")
    found = (primes[0], primes[-1], plan[f"engram.{layer}.rows"], plan[f"engram.{layer}.multipliers"])
    assert found == RELEASED[layer]
    assert plan["engram.multiplier_bound"] == 46_539_438_283_891
    assert len(primes) == 3 * 8
    assert offsets == tuple(sum(primes[:i]) for i in range(24))
    assert offsets[-1] + primes[-1] == RELEASED[layer][2]


def test_the_rows_are_derived_and_not_the_configs(make, released):
    """Both layers swapped in the config: their sizes are refused, so they come from the primes."""
    swapped = replace(released, engram_num_embeddings=released.engram_num_embeddings[::-1])
    with pytest.raises(InputError, match=r"layer 1 has 384016682 rows in engram_num_embeddings.* sum to 384006168"):
        derive(make(model=swapped))


def test_trap_19_primes_are_shared_by_layers_and_orders_released(make):
    plan = derive(make())
    first, second = tables_of(2, 3, 8, 16_000_000)
    assert list(plan.integers("engram.1.primes")) == first
    assert list(plan.integers("engram.14.primes")) == second
    (restarted,) = tables_of(1, 3, 8, 16_000_000)
    assert restarted == first != second  # what layer 14 would have without the first layer's


@settings(max_examples=20, deadline=None)
@given(
    layers=st.sets(st.integers(0, 5), min_size=1),
    order=st.integers(2, 5),
    heads=st.integers(1, 5),
    least=st.integers(1, 5000),
    classes=st.integers(1, 512),
)
def test_trap_19_primes_are_shared_by_layers_and_orders(make, tiny, layers, order, heads, least, classes):
    ids, tables = sorted(layers), list(tables_of(len(layers), order - 1, heads, max(least, 2)))
    model = replace(
        tiny,
        engram_layer_ids=tuple(ids),
        engram_num_embeddings=tuple(map(sum, tables)),
        engram_max_ngram_size=order,
        engram_n_heads=heads,
        engram_vocab_size=least,
        engram_compressed_vocab_size=classes,
    )
    plan = derive(make(ENGINE_FORMATS, model=model))
    assert plan["engram.history_tokens"] == order - 1
    for layer, primes in zip(ids, tables, strict=True):
        assert list(plan.integers(f"engram.{layer}.primes")) == primes
        assert plan[f"engram.{layer}.multipliers"] == numpys(layer, classes, order)
    assert len({p for table in tables for p in table}) == len(layers) * (order - 1) * heads


def numpys(layer: int, classes: int, count: int) -> Sequence[int]:
    drawn = np.random.default_rng(10007 * layer).integers(0, (2**63 - 1) // classes // 2, count)
    return tuple((drawn * 2 + 1).tolist())


@given(layer=st.integers(0, 10**6), classes=st.integers(1, 2**30 - 1), count=st.integers(1, 9))
def test_multipliers_are_numpys_draws(layer, classes, count):
    bound = (2**63 - 1) // classes // 2
    found = multipliers(layer, bound, count)
    assert found == numpys(layer, classes, count)
    assert all(m % 2 == 1 and m * (classes - 1) < 2**63 for m in found)
