"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found at ``start`` (characters from the beginning of the text)."""

    stop: str
    start: int

    @property
    def end(self) -> int:
        """Where the stop string ends."""
        return self.start + len(self.stop)


def find_stop(text: str, stops: Sequence[str], searchable_from: int) -> StopMatch | None:
    """The stop string that completes first among those that end behind ``searchable_from`` characters.

    The result is that of feeding the text one character at a time; of two that complete together the first listed wins.
    """
    best: StopMatch | None = None
    for stop in stops:
        start = text.find(stop, max(0, searchable_from - len(stop) + 1))
        if start >= 0 and (best is None or start + len(stop) < best.end):
            best = StopMatch(stop, start)
    return best


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may turn out to begin a stop string and must not be shown yet."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
