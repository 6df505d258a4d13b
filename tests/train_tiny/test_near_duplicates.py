"""Near duplicates are found as plain sets of shingles find them."""

from __future__ import annotations

import random

from fake_library import words
from hypothesis import given
from hypothesis import strategies as st
from near_duplicates import clusters

SHINGLE, SHARED = 8, 0.5


def by_sets(documents: dict[str, str]) -> set[frozenset[str]]:
    """Groups by the definition, texts being words separated by spaces."""

    def shingles(text: str) -> set[tuple[str, ...]]:
        tokens = text.split()
        return {tuple(tokens[i : i + SHINGLE]) for i in range(max(1, len(tokens) - SHINGLE + 1))}

    sets = {name: shingles(text) for name, text in documents.items()}
    groups = {frozenset([name]) for name in documents}
    for a in documents:
        for b in documents:
            if len(sets[a] & sets[b]) >= SHARED * min(len(sets[a]), len(sets[b])):
                joined = [group for group in groups if a in group or b in group]
                groups = (groups - set(joined)) | {frozenset().union(*joined)}
    return groups


TEXTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=9)


@given(TEXTS)
def test_groups_are_those_of_the_definition(cuts: list[tuple[int, int, int]]) -> None:
    """Every text is a window of one of four long ones, so that all degrees of overlap occur."""
    long = [[f"w{random.Random(f'{kind} {i}').randrange(50)}" for i in range(60)] for kind in range(4)]
    documents = {f"d{i}": " ".join(long[kind][at : at + size]) for i, (kind, at, size) in enumerate(cuts)}
    assert {frozenset(group) for group in clusters(documents)} == by_sets(documents)


def test_order_of_names_and_of_groups() -> None:
    documents = {"c": words(1), "b": words(2), "a": words(2), "d": words(1) + words(3, 2)}
    assert clusters(documents) == [["a", "b"], ["c", "d"]]


def test_a_copy_inside_a_longer_text_counts_and_chains_join() -> None:
    one, two = words(1), words(2)
    assert clusters({"long": one + words(4, 60), "short": one}) == [["long", "short"]]
    assert clusters({"one": one, "two": two}) == [["one"], ["two"]]
    assert clusters({"both": one + two, "one": one, "two": two}) == [["both", "one", "two"]]


def test_the_order_of_tokens_and_every_mark_matters() -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta"
    assert len(clusters({"a": text, "b": " ".join(reversed(text.split()))})) == 2
    assert len(clusters({"a": text, "b": text.replace(" zeta", ", zeta")})) == 2
    assert len(clusters({"a": text, "b": text.replace(" zeta", "\n    zeta")})) == 1
