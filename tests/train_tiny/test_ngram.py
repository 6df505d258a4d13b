"""The n-gram model against a case worked out by hand and against its formula in plain loops."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from ngram import NgramModel, discounts

BOS, EOS = 0, 1


def model(texts: Sequence[Sequence[int]], vocab_size: int, order: int) -> NgramModel:
    return NgramModel(texts, vocab_size=vocab_size, bos=BOS, eos=EOS, order=order)


def test_a_bigram_model_by_hand() -> None:
    """One text, 2 3 2 3 4, in a vocabulary of five.

    Bigrams: (0 2) 1, (2 3) 2, (3 2) 1, (3 4) 1, (4 1) 1; n3 is 0, so that the discounts are 1/2, 1 and 3/2.
    Unigrams count distinct predecessors: 1, 3 and 4 have one, 2 has two, five in all; n3 is 0 again.
    """
    small = model([[2, 3, 2, 3, 4]], vocab_size=5, order=2)
    # Of the five, 1/2 + 1/2 + 1/2 + 1 is taken off: gamma = 2.5 / 5.
    one = [0.5 / 5, 0.5 / 5 + 0.5 / 5, 0.5 / 5 + 1 / 5, 0.5 / 5 + 0.5 / 5, 0.5 / 5 + 0.5 / 5]
    np.testing.assert_allclose(small.distribution([4, 0])[0], 0.5 * one[0])
    behind_2 = [0.5 * p for p in one]
    behind_2[3] += (2 - 1) / 2
    np.testing.assert_allclose(small.distribution([2]), behind_2)
    behind_3 = [0.5 * p for p in one]
    behind_3[2] += 0.5 / 2
    behind_3[4] += 0.5 / 2
    np.testing.assert_allclose(small.distribution([3]), behind_3)
    np.testing.assert_allclose(small.distribution([1]), one, err_msg="nothing follows eos")
    bits = -math.log2(0.5 * one[2] + 0.5) - math.log2(behind_2[3]) - math.log2(behind_3[1])
    assert small.bits([2, 3]) == pytest.approx(bits)


def test_discounts_by_hand() -> None:
    counts = np.array([1] * 10 + [2] * 4 + [3] * 2 + [4] * 1 + [7] * 3)
    y = 10 / 18
    assert discounts(counts) == pytest.approx((1 - 2 * y * 4 / 10, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2))
    assert discounts(np.array([1, 1, 2])) == (0.5, 1.0, 1.5), "no n-gram was seen three times"


def random_texts(rng: random.Random, vocab_size: int) -> list[list[int]]:
    weights = [1 / (1 + i) for i in range(vocab_size - 2)]
    return [rng.choices(range(2, vocab_size), weights, k=rng.randint(0, 60)) for _ in range(30)]


def by_the_formula(
    texts: Sequence[Sequence[int]], vocab_size: int, order: int, context: list[int], token: int
) -> float:
    grams = [Counter[tuple[int, ...]]() for _ in range(order + 1)]
    for text in texts:
        padded = [BOS] * (order - 1) + list(text) + [EOS]
        for end in range(order, len(padded) + 1):
            grams[order][tuple(padded[end - order : end])] += 1
    for n in range(order - 1, 0, -1):
        for gram in grams[n + 1]:
            grams[n][gram[1:]] += 1
    p = 1 / vocab_size
    for n in range(1, order + 1):
        off = discounts(np.array(list(grams[n].values())))
        before = tuple(context[len(context) - n + 1 :])
        behind = {gram[-1]: count for gram, count in grams[n].items() if gram[:-1] == before}
        total = sum(behind.values())
        if total:
            gamma = sum(off[min(count, 3) - 1] for count in behind.values()) / total
            own = behind.get(token, 0)
            p = (own - off[min(own, 3) - 1] if own else 0) / total + gamma * p
    return p


@pytest.mark.parametrize("order", [1, 3, 5])
def test_every_probability_is_the_formula_s_and_they_sum_to_one(order: int) -> None:
    rng = random.Random(order)
    texts = random_texts(rng, 9)
    trained = model(texts, 9, order)
    contexts = [[rng.randrange(9) for _ in range(order - 1)] for _ in range(20)] + [[BOS] * (order - 1)]
    for context in contexts:
        distribution = trained.distribution(context)
        assert distribution.sum() == pytest.approx(1)
        expected = [by_the_formula(texts, 9, order, context, token) for token in range(9)]
        np.testing.assert_allclose(distribution, expected)
        many = np.repeat(np.array([context], np.int64).reshape(1, order - 1), 9, axis=0)
        np.testing.assert_allclose(trained.probabilities(many, np.arange(9)), distribution)


def test_no_ngram_spans_two_texts_and_greedy_ends_with_eos() -> None:
    trained = model([[2, 3, 4]] * 3, 6, 3)
    assert trained.greedy([2], 10) == [3, 4, EOS]
    assert trained.greedy([2], 2) == [3, 4]


def test_a_vocabulary_too_large_for_its_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        model([[2]], 10_000, 5)
