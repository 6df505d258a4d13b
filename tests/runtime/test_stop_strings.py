"""Stop strings: as if the text had come character by character, and nothing shown that may still be cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.runtime.stop_strings import find_stop, held_back

TEXTS = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)


def by_character(text: str, stops: list[str], searchable_from: int) -> tuple[str, int] | None:
    for end in range(searchable_from + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return stop, end - len(stop)
    return None


@given(TEXTS, STOPS, st.integers(0, 24))
def test_finds_what_feeding_single_characters_finds(text: str, stops: list[str], searchable_from: int) -> None:
    found = find_stop(text, stops, searchable_from)
    expected = by_character(text, stops, searchable_from)
    assert (found and (found.stop, found.start)) == expected


@given(TEXTS, STOPS)
def test_holds_back_the_longest_beginning_of_a_stop_string(text: str, stops: list[str]) -> None:
    beginnings = [s[:n] for s in stops for n in range(1, len(s))]
    assert held_back(text, stops) == max((len(b) for b in beginnings if text.endswith(b)), default=0)


@given(TEXTS, STOPS)
def test_what_was_shown_is_never_taken_back(text: str, stops: list[str]) -> None:
    shown = 0
    for end in range(len(text) + 1):
        match = find_stop(text[:end], stops, 0)
        visible = match.start if match else end - held_back(text[:end], stops)
        assert visible >= shown
        if match:
            return
        shown = visible
