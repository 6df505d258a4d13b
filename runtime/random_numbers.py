"""Counter-based random numbers: Philox-4x32-10 and what it is keyed by.

A number is a pure function of (request seed, branch, verify round of the request, offset in the round, purpose), so a
request draws the same numbers whatever else is in its batch, and a number drawn for a token that was cut off is never
drawn again. All of the key is known when a step is scheduled; the numbers are therefore made on the host.

Source of the generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_BUMPS = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


class Purpose(IntEnum):
    """What a number is drawn for; part of its key."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL_OR_BONUS = 2
    SEED = 3


def philox_4x32_10(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox-4x32 with ten rounds.

    ``counter`` [4, n] and ``key`` [2, n] hold 32-bit words in uint64; so does the result [4, n]. The products of two
    32-bit words fit uint64, so the arithmetic is exact.
    """
    keys = (key + _BUMPS) & _LOW
    even, odd = counter[0::2], counter[1::2]
    for turn in range(_ROUNDS):
        product = _MULTIPLIERS * even
        even, odd = (product >> _WORD)[::-1] ^ odd ^ keys[turn], (product & _LOW)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniforms(
    seeds: ArrayLike, rounds: ArrayLike, *, purpose: Purpose, offset: ArrayLike = 0, branch: ArrayLike = 0
) -> NDArray[np.float64]:
    """One uniform number in [0, 1) with 53 random bits per element of ``seeds`` (uint64); the rest is broadcast."""
    seed = np.asarray(seeds, np.uint64)
    counter = np.empty((4, len(seed)), np.uint64)
    counter[0], counter[1], counter[2], counter[3] = rounds, offset, purpose, branch
    words = philox_4x32_10(counter, np.stack([seed & _LOW, seed >> _WORD]))
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    numbers: NDArray[np.float64] = (high * np.uint64(1 << 26) + low) * 2.0**-53
    return numbers


def mix_seed(seed: int, index: int) -> int:
    """A 64-bit request seed from a base seed and a request's index; different indices give unrelated seeds."""
    word = seed & (2**64 - 1)
    counter = np.array([[index & 0xFFFFFFFF], [index >> 32], [Purpose.SEED], [0]], np.uint64)
    mixed = philox_4x32_10(counter, np.array([[word & 0xFFFFFFFF], [word >> 32]], np.uint64))
    return int(mixed[0, 0]) | int(mixed[1, 0]) << 32


def request_seeds(
    engine_seed: int, user_seeds: list[int | None], first_request: int, *, batch_invariant: bool
) -> list[int]:
    """The 64-bit seeds of the requests of one call.

    A request without a seed gets one derived from the engine's seed and its running number. A user's seed is taken as
    it is the first time it appears in a call; later requests with the same seed mix in their index in the call, unless
    ``batch_invariant``, because numbers shared across rows would make their outputs depend on each other.
    """
    seeds = []
    seen: set[int] = set()
    for index, user_seed in enumerate(user_seeds):
        if user_seed is None:
            seeds.append(mix_seed(engine_seed, first_request + index))
        elif user_seed in seen and not batch_invariant:
            seeds.append(mix_seed(user_seed, index))
        else:
            seen.add(user_seed)
            seeds.append(user_seed & (2**64 - 1))
    return seeds
