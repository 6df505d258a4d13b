"""64-bit mixing: every number that the modelled device draws is a hash of what it is drawn for.

The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_UNIFORM_BITS = 53
_UNIFORM_SHIFT = np.uint64(64 - _UNIFORM_BITS)
_WORD_BYTES = 8


def mix(values: UInt64) -> UInt64:
    """A bijection of 64-bit words in which every bit depends on every bit; arrays only, which wrap silently."""
    z = values * GOLDEN
    z ^= z >> _SHIFTS[0]
    z *= _FIRST
    z ^= z >> _SHIFTS[1]
    z *= _SECOND
    z ^= z >> _SHIFTS[2]
    return z


def key_of(*parts: Any) -> int:
    """A 64-bit key for what ``parts`` name, the same on every machine."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(sha256(text.encode()).digest()[:_WORD_BYTES], "little")


def threshold_of(probability: float) -> int:
    """What ``below`` compares with: a number is below it with this probability."""
    return int(probability * 2.0**_UNIFORM_BITS)


def below(words: UInt64, thresholds: UInt64) -> NDArray[np.bool_]:
    """Whether each word's upper bits, taken as a uniform number, are below a ``threshold_of``."""
    return (words >> _UNIFORM_SHIFT) < thresholds
