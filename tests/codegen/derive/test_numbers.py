"""Number theory behind the Engram tables, against numpy, a sieve and the numeric reference."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.derive.pcg64 import bounded_integers
from deepinfer_gen.codegen.derive.primes import is_prime, primes_after


@given(seed=st.integers(0, 2**127), high=st.integers(2**32 + 1, 2**63 - 1), count=st.integers(0, 9))
def test_bounded_integers_are_numpys(seed, high, count):
    assert bounded_integers(seed, high, count) == tuple(np.random.default_rng(seed).integers(0, high, count).tolist())


def test_small_bounds_are_refused():
    with pytest.raises(ValueError, match="another stream"):
        bounded_integers(1, 2**32, 1)


def test_primes_against_a_sieve():
    sieve = np.ones(20_000, bool)
    sieve[:2] = False
    for n in range(2, 142):
        if sieve[n]:
            sieve[n * n :: n] = False
    assert [n for n in range(20_000) if is_prime(n)] == np.flatnonzero(sieve).tolist()
    assert list(islice(primes_after(13), 3)) == [17, 19, 23]


@pytest.mark.parametrize("composite", [3215031751, 3474749660383, 341550071728321, 3825123056546413051])
def test_strong_pseudoprimes_are_found_composite(composite):
    assert not is_prime(composite)


def test_tiny_tables_equal_the_numeric_reference(make, tiny):
    plan = derive(make({"kv.main_format": "fp32", "kv.index_format": "fp32", "kv.swa_format": "fp32"}, model=tiny))
    assert plan["engram.1.primes"] == (1009, 1013, 1019, 1021, 1031, 1033)
    assert plan["engram.4.primes"] == (1039, 1049, 1051, 1061, 1063, 1069)
    assert plan["engram.1.offsets"] == (0, 1009, 2022, 3041, 4062, 5093)
    assert plan["engram.1.multipliers"] == (29319025719747617, 1851710431809357, 13757976252775921, 28307155380027123)
    assert plan["engram.4.multipliers"] == (31472315001388727, 1927431996717567, 28179413531004165, 7252028108960107)
