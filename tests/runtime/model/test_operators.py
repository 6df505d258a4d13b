"""Reference operators against plain loops, and tiles that change nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from step_batch import Row, batch_of

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.block_formats import quantize_activation
from deepinfer_gen.runtime.cache_codec import codec_of
from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.kernels.reference.compressor import pool_members
from deepinfer_gen.runtime.kernels.reference.hyper_connection import collapse, expand, mix, sinkhorn
from deepinfer_gen.runtime.kernels.reference.index_scores import index_scores
from deepinfer_gen.runtime.kernels.reference.linear import grouped_linear, linear
from deepinfer_gen.runtime.kernels.reference.moe_experts import moe_experts, swiglu
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kernels.reference.sparse_attention import EntryRows, WindowRows, sparse_attention
from deepinfer_gen.runtime.kv_cache import RegionRows
from deepinfer_gen.runtime.model.indexer import best_entries, candidate_mask
from deepinfer_gen.runtime.model.numerics import NUMERICS
from deepinfer_gen.runtime.model.rope import rotary_table, rotate_tail
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.plan_types import RopePlan


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def region(values: torch.Tensor) -> RegionRows:
    """A region of [units, rows, dims] float32 rows."""
    _, rows, dims = values.shape
    flat = values.contiguous().view(-1)
    return RegionRows(
        codec_of("fp32"), values, flat.as_strided((len(flat) - dims + 1, dims), (1, 1)), rows * dims, dims
    )


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 20), tile=st.integers(1, 25))
def test_tiles_give_the_same_rows(count: int, tile: int) -> None:
    x, streams = rand(count, 6), rand(count, 4, 6)
    close(linear(x, rand(5, 6), quantized=False, tokens=tile), x @ rand(5, 6).t())
    grouped = rand(count, 2, 3)
    expected = torch.einsum("tgd,grd->tgr", grouped, rand(2, 4, 3)).flatten(1)
    close(grouped_linear(grouped, rand(2, 4, 3), tokens=tile), expected)
    pre, comb = rand(count, 4).sigmoid(), rand(count, 4, 4).softmax(2)
    close(collapse(streams, pre, tokens=tile), torch.einsum("tn,tnd->td", pre, streams))
    out = expand(x, streams, pre, comb, tokens=tile)
    close(out, pre.unsqueeze(2) * x.unsqueeze(1) + torch.einsum("tij,tid->tjd", comb, streams))
    members = torch.randint(0, count, (count, 2))
    rows = rand(count, 8)
    weights = rows[members][..., 4:].softmax(1)
    close(pool_members(rows, members, tokens=tile), (weights * rows[members][..., :4]).sum(1))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 12), tile=st.integers(1, 9), seed=st.integers(0, 99))
def test_moe_equals_a_loop_over_tokens(count: int, tile: int, seed: int) -> None:
    x, w13, w2 = rand(count, 6, seed=seed), rand(5, 8, 6, seed=1), rand(5, 6, 4, seed=2)
    chosen = torch.stack(
        [torch.randperm(5, generator=torch.Generator().manual_seed(seed + i))[:2] for i in range(count)]
    )
    weights = rand(count, 2, seed=3).sigmoid()
    expected = torch.zeros_like(x)
    for token in range(count):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            gate, up = (w13[expert] @ x[token]).chunk(2)
            hidden = torch.nn.functional.silu(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)
            expected[token] += w2[expert] @ (hidden * weight)
    asked: list[int] = []
    found = moe_experts(
        x,
        chosen,
        weights,
        lambda e: (asked.append(e), w13[e])[1],
        lambda e: w2[e],
        experts=5,
        limit=0.5,
        quantized=False,
        tokens=tile,
    )
    close(found, expected)
    assert asked == sorted(set(chosen.flatten().tolist())), "a matrix is decoded once, and only where it is used"


def test_trap_15_the_gate_has_no_lower_clamp() -> None:
    found = swiglu(torch.tensor([[-20.0, 20.0]]), torch.tensor([[-30.0, 30.0]]), 10.0)
    assert found[0, 0] == pytest.approx(-20 / (1 + math.exp(20)) * -10)
    assert found[0, 1] == pytest.approx(10 / (1 + math.exp(-10)) * 10)


def test_trap_14_the_weight_is_applied_before_the_second_product() -> None:
    """Where operands are rounded to 8 bits, before and after are different numbers; 0.3 is no power of two."""
    x, w13, w2 = rand(3, 32).bfloat16(), rand(64, 32, seed=1), rand(32, 32, seed=2)
    chosen, weights = torch.zeros(3, 1, dtype=torch.int64), torch.full((3, 1), 0.3)
    found = moe_experts(x, chosen, weights, lambda _: w13, lambda _: w2, experts=1, limit=9.0, quantized=True, tokens=3)
    hidden = swiglu(*(quantize_activation(x) @ w13.t()).bfloat16().chunk(2, 1), 9.0)
    before = quantize_activation((0.3 * hidden).bfloat16()) @ w2.t()
    after = 0.3 * (quantize_activation(hidden.bfloat16()) @ w2.t())
    close(found, before.bfloat16().float())
    assert (after - before).abs().max() > 0.01


@settings(max_examples=20, deadline=None)
@given(tile=st.integers(1, 7), seed=st.integers(0, 99))
def test_attention_equals_a_loop(tile: int, seed: int) -> None:
    q, rows, blocks, sink = rand(5, 2, 4, seed=seed), rand(9, 4, seed=1), rand(3, 4, 4, seed=2), rand(2, seed=3)
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 9, (5, 3), generator=generator)
    valid = torch.tensor([[False, False, True]] * 3 + [[True, True, True]] * 2)
    offsets = torch.randint(0, 12, (5, 2), generator=generator) * 4
    chosen = torch.tensor([[False, False], [True, False]] + [[True, True]] * 3)
    found = sparse_attention(
        q,
        WindowRows(rows, index, valid),
        EntryRows(region(blocks), offsets, chosen),
        sink,
        scale=0.5,
        probabilities=torch.float32,
        queries=tile,
    )
    for t in range(5):
        keys = torch.cat([rows[index[t][valid[t]]], blocks.view(-1, 4)[offsets[t][chosen[t]] // 4]])
        for h in range(2):
            scores = (keys @ q[t, h] * 0.5).exp()
            close(found[t, h], scores @ keys / (scores.sum() + sink[h].exp()))


def test_trap_16_the_sink_is_not_scaled_and_has_no_value() -> None:
    """Scores of 0 and sinks of ln 3 and 0: weights of 1 / 4 and 1 / 2. Scaled by 1 / 8, 3 would be 3^(1 / 8)."""
    key, sink = rand(1, 64), torch.tensor([math.log(3.0), 0.0])
    window = WindowRows(key, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    arguments = {"scale": 1 / 8, "probabilities": torch.float32, "queries": 1}
    found = sparse_attention(torch.zeros(1, 2, 64), window, None, sink, **arguments)
    close(found, torch.stack([key / 4, key / 2], 1))


def test_rounded_weights_are_relative_to_the_best_row_even_below_the_sink() -> None:
    """The reference's running maximum never sees the sink; relative to the sink the bfloat16 weights are others."""
    q, keys, sink = rand(1, 1, 4), rand(6, 4, seed=1), torch.tensor([3.0])
    window = WindowRows(keys, torch.arange(6).view(1, 6), torch.ones(1, 6, dtype=torch.bool))
    found = sparse_attention(q, window, None, sink, scale=1.0, probabilities=torch.bfloat16, queries=1)[0, 0]
    scores = (keys @ q[0, 0]).double()
    outcomes = []
    for highest in (scores.max(), sink[0].double()):
        weights = (scores - highest).exp()
        rounded = weights.float().bfloat16().double()
        outcomes.append(rounded @ keys.double() / (weights.sum() + (sink[0].double() - highest).exp()))
    torch.testing.assert_close(found.double(), outcomes[0], rtol=1e-6, atol=1e-7)
    assert (outcomes[0] - outcomes[1]).abs().max() > 1e-4


@settings(max_examples=20, deadline=None)
@given(queries=st.integers(1, 6), entries=st.integers(1, 12), width=st.integers(1, 11))
def test_index_scores_equal_a_loop(queries: int, entries: int, width: int) -> None:
    q, weights, keys = rand(5, 3, 4), rand(5, 3, seed=1), rand(6, 4, 4, seed=2)
    tables = torch.tensor([[5, 1, 2]] * 2 + [[3, 4, 1]] * 3)
    visible = torch.tensor([0, 1, 4, 7, 11])
    found = index_scores(q, weights, region(keys), tables, visible, width=width, queries=queries, entries=entries)
    for t in range(5):
        for j in range(width):
            key = keys[tables[t, j // 4], j % 4]
            expected = (weights[t] * (q[t] @ key).relu()).sum() if j < visible[t] else torch.tensor(-torch.inf)
            close(found[t, j], expected)


def passes(comb: torch.Tensor, axes: str, eps: float = 1e-6) -> torch.Tensor:
    """Sinkhorn passes in order: ``r`` divides by the sum over a row, ``c`` by that over a column."""
    for axis in axes:
        comb = comb / (comb.sum(2 if axis == "r" else 1, keepdim=True) + eps)
    return comb


def test_trap_13_sinkhorn_order() -> None:
    """On numbers that neither pass has touched, and after few passes, since many lead to one matrix from anywhere."""
    start = rand(3, 4, 4).exp()
    for iterations in (1, 2, 20):
        found = sinkhorn(start, iterations=iterations, eps=1e-6)
        close(found, passes(start, "c" + "rc" * (iterations - 1)))
        torch.testing.assert_close(found.sum(1), torch.ones(3, 4), rtol=0, atol=5e-6)
    for other in ("rcrc", "crcr", "rcr"):
        assert (passes(start, other) - passes(start, "crc")).abs().max() > 1e-3


def test_mix_ranges() -> None:
    arguments = {"iterations": 20, "norm_eps": 1e-20, "eps": 1e-6}
    x, fn, base, scale = rand(7, 4, 8), rand(24, 32), rand(24), rand(24).abs()
    whole, tiled = (mix(x, fn, base, scale, **arguments, tokens=n) for n in (100, 3))
    for a, b in zip(whole, tiled, strict=True):
        close(a, b)
    pre, post, _ = whole
    assert pre.min() >= 1e-6
    assert 0.5 < pre.max() <= 1 + 2e-6
    assert post.min() >= 0
    assert 1 < post.max() <= 2


def test_trap_12_rms_norm_eps_is_negligible_at_tiny_inputs() -> None:
    x = rand(2, 16)
    close(rms_norm(x * 1e-7, torch.ones(16), 1e-20), rms_norm(x, torch.ones(16), 1e-20))
    assert rms_norm(torch.zeros(1, 16), torch.ones(16), 1e-20).abs().max() == 0


def test_the_eps_is_added_to_the_mean() -> None:
    x, weight = rand(3, 16), rand(16)
    sizes = [math.sqrt(sum(v * v for v in row) / 16 + 0.25) for row in x.tolist()]
    close(rms_norm(x, weight, 0.25), x / torch.tensor(sizes).unsqueeze(1) * weight)


@pytest.mark.parametrize(
    ("policy", "rounds_operands", "rounds_probabilities"),
    [
        ("released", True, True),
        ("bf16", False, True),
        ("float32", False, False),
        ("float32_unquantized", False, False),
    ],
)
def test_what_each_policy_rounds(policy: str, rounds_operands: bool, rounds_probabilities: bool, helpers: Any) -> None:
    """Operands of quantised weights to e4m3, attention weights to bfloat16; on float32 inputs nothing else shows."""
    ops = ReferenceOperators(helpers.kernel_table(helpers.tiles), NUMERICS[policy])
    x, values = rand(4, 32), rand(8, 32)
    operand = quantize_activation(x) if rounds_operands else x
    for quantized, seen in ((True, operand), (False, x)):
        weight: Any = SimpleNamespace(quantized=quantized, decode=lambda: values)
        close(ops.linear(x, weight), seen @ values.t())
    q, rows, sink = rand(2, 3, 16) / 8, rand(9, 16), rand(3)
    index = torch.arange(9).expand(2, -1)
    found = ops.sparse_attention(q, WindowRows(rows, index, index >= 0), None, sink, scale=1.0)
    scores = q @ rows.t()
    weights = (scores - scores.amax(2, keepdim=True)).exp()
    total = weights.sum(2, keepdim=True) + (sink.view(1, 3, 1) - scores.amax(2, keepdim=True)).exp()
    plain, rounded = weights @ rows / total, weights.bfloat16().float() @ rows / total
    assert (plain - rounded).abs().max() > 1e-4
    close(found, rounded if rounds_probabilities else plain)


def test_trap_10_rotation_of_adjacent_pairs_of_the_tail() -> None:
    table = rotary_table(RopePlan(10000, 1, 0, 0), 4, 8)
    x = rand(1, 1, 6)
    turned = rotate_tail(x.clone(), table[3:4])
    assert torch.equal(turned[..., :2], x[..., :2])
    for pair, frequency in ((2, 1.0), (4, 0.01)):
        a, b = x[0, 0, pair : pair + 2].tolist()
        angle = 3 * frequency
        expected = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
        close(turned[0, 0, pair : pair + 2], torch.tensor(expected))
    # The conjugate undoes it.
    close(rotate_tail(turned.clone(), table[3:4].conj()), x)


def test_trap_10_yarn_changes_frequencies_only() -> None:
    plain = rotary_table(RopePlan(160000, 1, 0, 0), 16, 64)
    yarn = rotary_table(RopePlan(160000, 16, 2, 5), 16, 64)
    torch.testing.assert_close(yarn.abs(), torch.ones(64, 8), rtol=0, atol=1e-6)
    close(torch.view_as_real(yarn[:, :3]), torch.view_as_real(plain[:, :3]))
    angle, slow = plain[1, 7].angle(), yarn[1, 7].angle()
    assert slow == pytest.approx(float(angle) / 16, rel=1e-5)


def test_selection_is_ascending_and_padded() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, -torch.inf], [-torch.inf] * 4, [5.0, 5.0, 5.0, 5.0]])
    assert best_entries(scores, 2).tolist() == [[0, 2], [-1, -1], [0, 1]]
    assert best_entries(scores, 9).tolist() == [[0, 1, 2, -1], [-1] * 4, [0, 1, 2, 3]]


def test_trap_32_the_newest_block_is_kept_and_none_of_a_query_that_sees_nothing() -> None:
    """Though it scores last; the block before the first is not the last one, nor block 0."""
    scores = torch.full((3, 7), -torch.inf)
    scores[0] = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 1.0])
    scores[1, :1] = 2.0
    kept = candidate_mask(scores, torch.tensor([7, 1, 0]), blocks=2, block_size=2)
    assert kept[0].tolist() == [True, True, False, False, False, False, True]
    assert kept[1].tolist() == [True, True] + [False] * 5
    assert not kept[2].any()


def test_trap_33_a_pad_does_not_collide_with_entry_or_block_0() -> None:
    """Fewer blocks than may be kept, fewer entries than are asked for, and the first of both is not among them."""
    scores = torch.full((1, 8), -torch.inf)
    scores[0, 4:6] = torch.tensor([1.0, 2.0])
    kept = candidate_mask(scores, torch.tensor([6]), blocks=3, block_size=2)
    assert kept[0].tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert best_entries(scores, 4).tolist() == [[4, 5, -1, -1]]


def test_trap_33_a_pad_reads_nothing_though_it_points_at_entry_0() -> None:
    keys = rand(1, 4, 4)
    step = StepContext(batch_of([Row([0] * 4, 0, 4)]), cache=None, rotary={})  # type: ignore[arg-type]
    step.publish(3, region(keys), torch.tensor([[2, -1]] * 4))
    entries = step.selections[3].rows(region(keys))
    assert entries.valid.tolist() == [[True, False]] * 4
    nothing = WindowRows(torch.zeros(1, 4), torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.bool))
    found = sparse_attention(
        rand(4, 1, 4), nothing, entries, torch.full((1,), -50.0), scale=1.0, probabilities=torch.float32, queries=4
    )
    close(found, keys[0, 2].expand(4, 1, 4))


@pytest.mark.parametrize("fault", ["absent", "implementation", "tile"])
def test_kernel_table_faults(fault: str, helpers: Any) -> None:
    kernels = helpers.kernel_table(helpers.tiles)
    if fault == "absent":
        del kernels["compressor"]
    elif fault == "implementation":
        kernels["compressor"] = helpers.replace(kernels["compressor"], implementation="tilelang")
    else:
        kernels["compressor"] = helpers.replace(kernels["compressor"], tile={"rows": 4})
    with pytest.raises(InputError, match=r"DI342.*compressor"):
        ReferenceOperators(kernels, NUMERICS["float32"])
