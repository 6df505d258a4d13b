"""Compressor and index keys at released widths: pairs that begin in an earlier step, and single tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64_weights import Array, product, rms, rotate, vector
from released_scene import Parts, Scene

from deepinfer_gen.runtime.model.compressor import Compressor
from deepinfer_gen.runtime.model.indexer import IndexKeys

START = 17_000  # the first token of a pair


def run(engine: Parts, index: int, counts: list[int]) -> tuple[Scene, Array]:
    """Steps of ``counts`` tokens after the token at 17,000; returns the scene and the inputs from that token on."""
    layer, c = engine.layer(index), engine.constants
    compressor, keys = (part(engine.source, layer, c, engine.operators) for part in (Compressor, IndexKeys))
    scene = Scene(engine, [START])
    assert layer.main is not None
    assert layer.index_keys is not None
    inputs = []
    for count in [1, *counts]:
        step, u = scene.step([count]), scene.randn(count, 5120)
        latent = compressor(u, scene.cache.block_rows(layer.main), step)
        keys(latent, scene.cache.block_rows(layer.index_keys), step)
        scene.held[0] += count
        inputs.append(u)
    return scene, torch.cat(inputs).double().numpy()


def latents(engine: Parts, index: int, u: Array) -> list[Array]:
    """Entry by entry, in float64: at ratio 2 each channel of a pair is weighed by a softmax of its own."""
    prefix = f"layers.{index}.attn.compressor"
    kv = product(u, engine.source, f"{prefix}.wkv")
    norm = vector(engine.source, f"{prefix}.norm.weight")
    if index == 20:
        return [rms(row, norm) for row in kv]
    score = np.exp(product(u, engine.source, f"{prefix}.wgate"))
    pooled = [(score[i] * kv[i] + score[i + 1] * kv[i + 1]) / (score[i] + score[i + 1])
              for i in range(0, len(u) - 1, 2)]  # fmt: skip
    return [rms(row, norm) for row in pooled]


@pytest.mark.parametrize(("index", "counts"), [(2, [4]), (14, [1, 3]), (20, [2, 2])])
def test_entries_and_keys(widths: Parts, index: int, counts: list[int]) -> None:
    """Tokens 17,000 to 17,004 give two pairs, the last token waiting, or five entries."""
    scene, u = run(widths, index, counts)
    layer = widths.layer(index)
    expected = latents(widths, index, u)
    assert len(expected) == (5 if index == 20 else 2)
    assert layer.main is not None
    assert layer.index_keys is not None
    main, keys = scene.cache.block_rows(layer.main), scene.cache.block_rows(layer.index_keys)
    k_norm = vector(widths.source, f"layers.{index}.attn.indexer.k_norm.weight")
    for number, latent in enumerate(expected):
        entry = START // layer.ratio + number
        block, place = scene.entry(layer, 0, entry)
        # An entry stands at the position of its first token; index keys come from the latent before rotation.
        turn = scene.rotary["compressed"][entry * layer.ratio].numpy().astype(np.complex128)
        np.testing.assert_allclose(main.grid[block, place].numpy(), rotate(latent, turn), atol=2e-5)
        key = rotate(rms(product(latent, widths.source, f"layers.{index}.attn.indexer.wk"), k_norm), turn)
        np.testing.assert_allclose(keys.grid[block, place].numpy(), key, atol=2e-5)
    written = {scene.entry(layer, 0, START // layer.ratio + number) for number in range(len(expected))}
    touched = set(map(tuple, (main.grid != 0).any(2).nonzero().tolist()))
    assert touched == written


def test_the_open_token_waits_in_the_accumulators(widths: Parts) -> None:
    scene, u = run(widths, 8, [4])
    state = widths.layer(8).ca_state
    assert state is not None
    ring = scene.cache.slot_rows(state)
    row = ring.grid[scene.slots[0], 17_004 % state.rows].numpy()
    prefix = "layers.8.attn.compressor"
    expected = [product(u[4], widths.source, f"{prefix}.{name}") for name in ("wkv", "wgate")]
    np.testing.assert_allclose(row, np.concatenate(expected), atol=2e-5)
