"""The mirror split of context-parallel prefill: the torch form against plain loops, then the kernel against it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import disagreements

from deepinfer_gen.runtime.kernels.reference.mirror_cp import mirror_split


@given(st.integers(1, 4), st.lists(st.integers(0, 40), max_size=4))
def test_rank_i_takes_pieces_i_and_its_mirror_image(cp: int, lengths: list[int]) -> None:
    ranks: list[list[int]] = [[] for _ in range(cp)]
    start = 0
    for length in lengths:
        tokens = range(start, start + length)
        size = -(-length // (2 * cp))
        pieces = [tokens[n * size : (n + 1) * size] for n in range(2 * cp)]
        for rank in range(cp):
            ranks[rank] += [*pieces[rank], *pieces[2 * cp - 1 - rank]]
        start += length

    starts = torch.tensor([0, *lengths]).cumsum(0)
    made = mirror_split(starts, start, cp)

    assert made.counts.tolist() == [len(tokens) for tokens in ranks]
    assert made.tokens.tolist() == [tokens + [-1] * (start - len(tokens)) for tokens in ranks]
    assert sorted(token for tokens in ranks for token in tokens) == list(range(start))
    for token, (owner, place) in enumerate(zip(made.owner.tolist(), made.place.tolist(), strict=True)):
        assert ranks[owner][place] == token


def test_whole_chunks_cost_every_rank_the_same() -> None:
    made = mirror_split(torch.tensor([0, 64]), 64, 4)
    assert made.counts.tolist() == [16] * 4
    assert {sum(tokens[:16]) for tokens in made.tokens.tolist()} == {sum(range(64)) // 4}


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("mirror_cp", "cpu") == []
