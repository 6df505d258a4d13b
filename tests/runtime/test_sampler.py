"""The sampler: right distributions, rows that do not see each other, tiles that change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.sampler import logprob_rows, sample_rows
from deepinfer_gen.runtime.plan_types import KernelConfig
from deepinfer_gen.runtime.random_numbers import Purpose, uniforms
from deepinfer_gen.runtime.request import Request
from deepinfer_gen.runtime.sampler import Sampled, Sampler, SamplingTable
from deepinfer_gen.runtime.sampling_params import SamplingParams

VOCAB = 24


def kernel(rows: int) -> KernelConfig:
    return KernelConfig("sampler", "reference", {}, {"rows": rows}, 1, 1, 0, "test")


def request(number: int, params: SamplingParams, seed: int = 0) -> Request:
    made = Request(number, None, [1, 2, 3], params, seed, None, id=number)
    made.barred_ids = (0, *(params.stop_token_ids or ()))
    return made


def sample(
    logits: Tensor, params: Sequence[SamplingParams], *, tile: int = 4, table: SamplingTable | None = None
) -> Sampled:
    requests = [request(i + 1, p, seed=100 + i) for i, p in enumerate(params)]
    return sample_requests(logits, requests, tile=tile, table=table)


def sample_requests(
    logits: Tensor, requests: Sequence[Request], *, tile: int = 4, table: SamplingTable | None = None, outputs: int = 0
) -> Sampled:
    table = table or SamplingTable(VOCAB)
    k_lens = [r.prompt_length + outputs for r in requests]
    return Sampler(kernel(tile)).sample(logits, table.rows(requests, k_lens))


def expected_distribution(logits: Tensor, params: SamplingParams) -> np.ndarray:
    """Filters written the slow way: min-p, then top-k, then top-p, each renormalised."""
    p = torch.softmax(logits.double() / params.temperature, -1).numpy()
    p = np.where(p >= params.min_p * p.max(), p, 0)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if params.top_k > 0:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    mass = 0.0
    for i in order:
        if mass >= params.top_p:
            p[i] = 0
        mass += p[i]
    return p / p.sum()


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.5, top_k=9, top_p=0.8, min_p=0.05),
    SamplingParams(top_k=1),
    SamplingParams(top_p=0.001),
]


@pytest.mark.parametrize("params", FILTERS, ids=repr)
def test_the_draw_has_the_filtered_distribution(params: SamplingParams) -> None:
    draws = 20_000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5
    numbers = torch.from_numpy(uniforms(np.arange(draws), np.zeros(draws), purpose=Purpose.RESIDUAL_OR_BONUS))

    def column(value: float, kind: torch.dtype) -> Tensor:
        return torch.full((draws,), value, dtype=kind)

    tokens = sample_rows(
        logits.expand(draws, -1),
        column(params.temperature, torch.float32),
        column(params.top_k if params.top_k > 0 else VOCAB, torch.int64),
        column(params.top_p, torch.float32),
        column(params.min_p, torch.float32),
        numbers,
    )
    expected = expected_distribution(logits, params) * draws
    seen = np.bincount(tokens.numpy(), minlength=VOCAB)
    assert (seen[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = float(((seen - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < 58  # at most 23 degrees of freedom, one in ten thousand


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_row_depends_neither_on_its_batch_nor_on_tiles(data: st.DataObject) -> None:
    params = data.draw(st.lists(st.sampled_from([*FILTERS, SamplingParams(temperature=0)]), min_size=1, max_size=9))
    logits = torch.randn(len(params), VOCAB, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    tile = data.draw(st.integers(1, 9))
    together = sample(logits, params, tile=tile).tokens.tolist()
    alone = [
        int(sample_requests(logits[i : i + 1], [request(i + 1, p, seed=100 + i)]).tokens[0])
        for i, p in enumerate(params)
    ]
    assert together == alone


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 9]] = 3.0
    assert sample(logits, [SamplingParams(temperature=0)]).tokens.tolist() == [7]


def test_numbers_at_the_ends_of_the_interval_give_possible_tokens() -> None:
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, [3, 20]] = torch.tensor([0.0, 1.0])
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    ones = torch.ones(2)
    tokens = sample_rows(logits, ones, torch.full((2,), VOCAB), ones, ones * 0, ends)
    assert tokens.tolist() == [3, 20]


def test_each_round_of_a_request_draws_another_number() -> None:
    one = request(1, SamplingParams(), seed=3)
    flat = torch.zeros(1, VOCAB)
    table = SamplingTable(VOCAB)
    tokens = [int(sample_requests(flat, [one], table=table).tokens[0]) for _ in range(40)]
    assert len(set(tokens)) > 8
    again = request(1, SamplingParams(), seed=3)
    assert tokens == [int(sample_requests(flat, [again]).tokens[0]) for _ in range(40)]


def test_rows_that_change_take_the_new_parameters() -> None:
    table = SamplingTable(VOCAB)
    random, greedy = request(1, SamplingParams()), request(2, SamplingParams(temperature=0))
    for requests, expected in (([random], [0]), ([greedy], []), ([greedy, random], [1]), ([greedy, random], [1])):
        assert table.rows(requests, [3] * len(requests)).parameters.random == expected


def test_end_tokens_cannot_come_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 0], logits[0, 5], logits[0, 6] = 9.0, 8.0, 7.0
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[5], logprobs=0)
    drawn = [sample_requests(logits, [request(1, params)], outputs=n) for n in range(3)]
    assert [int(d.tokens[0]) for d in drawn] == [6, 6, 0]
    raw = torch.log_softmax(logits, -1)[0, 6]
    assert drawn[0].logprobs[0].chosen == pytest.approx(float(raw))
    assert logits[0, 0] == 9.0


def test_logprobs_are_of_the_raw_distribution_with_ranks() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=2, logprobs=3), SamplingParams(), SamplingParams(temperature=0.5, logprobs=-1)]
    result = sample(logits, params, tile=1)
    assert set(result.logprobs) == {0, 2}
    raw = torch.log_softmax(logits, -1)
    for row, width in ((0, 3), (2, VOCAB)):
        found = result.logprobs[row]
        order = raw[row].argsort(descending=True).tolist()
        assert found.top_ids == order[:width]
        assert found.top == pytest.approx(raw[row][order[:width]].tolist())
        token = int(result.tokens[row])
        assert found.chosen == pytest.approx(float(raw[row, token]))
        assert found.rank == order.index(token) + 1


def test_logprobs_of_different_widths_share_a_tile() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(temperature=0, logprobs=k) for k in (0, 4, 1)]
    result = sample(logits, params, tile=8)
    assert [len(result.logprobs[i].top_ids) for i in range(3)] == [0, 4, 1]


def test_rank_counts_strictly_better_tokens() -> None:
    logits = torch.tensor([[2.0, 2.0, 5.0, 1.0]])
    assert logprob_rows(logits, torch.tensor([1]), 0).rank.tolist() == [2]
