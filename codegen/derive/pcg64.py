"""numpy's ``default_rng(seed).integers(0, high, count)`` in plain Python.

The Engram hash multipliers are defined by that call. Planning must not pay numpy's import (a third of the start-up
budget), and numpy does not promise the stream across versions, so the two algorithms behind it are written out:
``SeedSequence`` (M. O'Neill's randutils seed mixing) and PCG64 XSL-RR with Lemire's bounded draw.
"""

from __future__ import annotations

_M32 = 2**32 - 1
_M64 = 2**64 - 1
_M128 = 2**128 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_POOL = 4


def bounded_integers(seed: int, high: int, count: int) -> tuple[int, ...]:
    """``count`` integers in ``0 .. high - 1``; ``high`` must be over 2**32, below which numpy draws 32-bit words."""
    if high <= 2**32:
        raise ValueError(f"high is {high}; draws of at most 2**32 use another stream")
    stream = _Pcg64(seed)
    threshold = (2**64 - high) % high
    values: list[int] = []
    while len(values) < count:
        product = stream.next() * high
        if product & _M64 >= threshold:
            values.append(product >> 64)
    return tuple(values)


class _Pcg64:
    """PCG64 XSL-RR seeded as numpy seeds it."""

    def __init__(self, seed: int) -> None:
        words = _seed_words(seed)
        state = words[0] << 64 | words[1]
        self._increment = ((words[2] << 64 | words[3]) << 1 | 1) & _M128
        self._state = 0
        self._advance()
        self._state = (self._state + state) & _M128
        self._advance()

    def _advance(self) -> None:
        self._state = (self._state * _MULTIPLIER + self._increment) & _M128

    def next(self) -> int:
        """The next 64-bit word."""
        self._advance()
        word = (self._state >> 64) ^ (self._state & _M64)
        turn = self._state >> 122
        return (word >> turn | word << (-turn & 63)) & _M64


def _seed_words(seed: int) -> tuple[int, int, int, int]:
    """``SeedSequence(seed).generate_state(4, uint64)`` for a seed of at most 128 bits."""
    entropy = [seed >> shift & _M32 for shift in range(0, 32 * _POOL, 32)]
    constant = 0x43B0D7E5

    def scramble(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & _M32
        value = value * constant & _M32
        return value ^ value >> 16

    def mix(left: int, right: int) -> int:
        value = (left * 0xCA01F9DD - right * 0x4973F715) & _M32
        return value ^ value >> 16

    pool = [scramble(word) for word in entropy]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mix(pool[target], scramble(pool[source]))
    constant = 0x8B51F9DD
    words: list[int] = []
    for index in range(2 * _POOL):
        value = pool[index % _POOL] ^ constant
        constant = constant * 0x58F38DED & _M32
        value = value * constant & _M32
        words.append(value ^ value >> 16)
    low_high = [words[i] | words[i + 1] << 32 for i in range(0, 2 * _POOL, 2)]
    return low_high[0], low_high[1], low_high[2], low_high[3]
