"""Experts of 2304, top-6 of the eight that are here, and hyper-connections of four streams of 5120."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64_weights import Array, product, vector
from released_scene import Parts

from deepinfer_gen.runtime.model.hyper_connection import HyperConnection
from deepinfer_gen.runtime.model.moe import MixtureOfExperts

TOKENS = 3


def expert(x: Array, engine: Parts, prefix: str, weight: float = 1.0) -> Array:
    """One SwiGLU: the gate bounded from above, the other factor from both sides, the weight before w2."""
    gate, up = (product(x, engine.source, f"{prefix}.{name}") for name in ("w1", "w3"))
    gate, up = np.minimum(gate, 10.0), np.clip(up, -10.0, 10.0)
    return product(gate / (1 + np.exp(-gate)) * up * weight, engine.source, f"{prefix}.w2")


@pytest.mark.long
def test_experts_of_a_layer(widths: Parts) -> None:
    prefix, layer = "layers.20.ffn", widths.layer(20)
    module = MixtureOfExperts(
        widths.source, prefix, widths.constants, widths.operators, experts=layer.experts, per_token=6
    )
    assert module.w13.values.shape[1] == 2 * 2304
    # Large enough for the bounds of 10 to act.
    u = 4 * torch.randn((TOKENS, 5120), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        found = module(u).double().numpy()
    x = u.double().numpy()
    scores = np.sqrt(np.log1p(np.exp(product(x, widths.source, f"{prefix}.gate"))))
    biased = scores + vector(widths.source, f"{prefix}.gate.bias")
    bounded = 0
    for t in range(TOKENS):
        chosen = np.argsort(-biased[t])[:6]
        weights = scores[t, chosen] / scores[t, chosen].sum() * 1.5
        expected = expert(x[t], widths, f"{prefix}.shared_experts")
        for e, weight in zip(chosen, weights, strict=True):
            expected = expected + expert(x[t], widths, f"{prefix}.experts.{e}", weight)
            bounded += int((np.abs(product(x[t], widths.source, f"{prefix}.experts.{e}.w3")) > 10).sum())
        np.testing.assert_allclose(found[t], expected, atol=2e-5 * np.abs(expected).max())
    assert bounded > 100


def test_hyper_connection_of_a_site(widths: Parts) -> None:
    """24 coefficients from 20,480 numbers; one column pass, then 19 of rows and columns; collapse and expand."""
    prefix = "layers.3.hc_ffn"
    module = HyperConnection(widths.source, prefix, widths.constants, widths.operators)
    random = torch.Generator().manual_seed(6)
    streams, y = torch.randn((TOKENS, 4, 5120), generator=random), torch.randn((TOKENS, 5120), generator=random)
    pre, post, comb = module(streams)
    collapsed = widths.operators.hyper_collapse(streams, pre).numpy()
    expanded = widths.operators.hyper_expand(y, streams, post, comb).numpy()

    x, added = streams.double().numpy(), y.double().numpy()
    fn, base, scale = (vector(widths.source, f"{prefix}_{name}") for name in ("fn", "base", "scale"))
    for t in range(TOKENS):
        flat = x[t].reshape(-1)
        m = fn @ flat / np.sqrt((flat**2).mean() + 1e-20)
        m = m * np.repeat(scale, [4, 4, 16]) + base
        expected_pre, expected_post = 1 / (1 + np.exp(-m[:4])) + 1e-6, 2 / (1 + np.exp(-m[4:8]))
        square = np.exp(m[8:].reshape(4, 4))
        square = square / square.sum(1, keepdims=True) + 1e-6
        square /= square.sum(0, keepdims=True) + 1e-6
        for _ in range(19):
            square /= square.sum(1, keepdims=True) + 1e-6
            square /= square.sum(0, keepdims=True) + 1e-6
        for found, expected in ((pre, expected_pre), (post, expected_post), (comb, square)):
            np.testing.assert_allclose(found[t].numpy(), expected, atol=2e-6)
        np.testing.assert_allclose(collapsed[t], expected_pre @ x[t], atol=2e-5)
        # The first index of the square is the stream that goes in.
        mixed = np.stack(
            [expected_post[j] * added[t] + sum(square[i, j] * x[t, i] for i in range(4)) for j in range(4)]
        )
        np.testing.assert_allclose(expanded[t], mixed, atol=2e-5)
