"""Consecutive primes: the moduli of the Engram hash tables."""

from __future__ import annotations

from collections.abc import Iterator

_SMALL = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(number: int) -> bool:
    """Miller-Rabin with the first twelve primes as bases, which is a proof below 3.3 * 10**24."""
    if number < 2:
        return False
    for prime in _SMALL:
        if number % prime == 0:
            return number == prime
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in _SMALL)


def primes_after(number: int) -> Iterator[int]:
    """The primes above ``number``, ascending, without end."""
    candidate = number
    while True:
        candidate += 1
        if is_prime(candidate):
            yield candidate


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
