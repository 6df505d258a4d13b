"""One layer of each kind at released widths, run on a step over more than 16,384 entries.

The layers run in one step, as in the model: layer 3 reads what layer 2 stored and selected, and layer 24 selects inside
20's candidates. The attention sublayer of each is computed again in float64, from the bytes that the caches held.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from float64_weights import Array, matrix, product, rms, rotate, vector
from released_scene import Parts, Scene, released

from deepinfer_gen.runtime.model.layer import Layer
from deepinfer_gen.runtime.model.step_context import StepContext

KINDS = {0: "window only", 2: "full, ratio 2", 3: "reuse", 20: "full, ratio 1, candidates", 24: "reindex"}
HELD, COUNTS = [17_000, 1], [3, 1]
TOKENS = sum(COUNTS)

pytestmark = pytest.mark.long


@dataclass
class Run:
    """What a layer took and gave, and the rings as they were before it."""

    x: torch.Tensor
    attention_in: torch.Tensor
    attention_out: torch.Tensor
    streams: torch.Tensor
    pre: torch.Tensor
    slots_before: torch.Tensor


def run_layer(engine: Parts, scene: Scene, step: StepContext, layer: Layer, x: torch.Tensor, pre: torch.Tensor) -> Run:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = layer.attention.register_forward_hook(lambda _, given, result: seen.append((given[0], result)))
    before = scene.cache.slots.clone()
    with torch.inference_mode():
        streams, next_pre = layer(x, pre, step)
    hook.remove()
    return Run(x, *seen[0], streams, next_pre, before)


def step_again(step: StepContext) -> StepContext:
    """The same step with what earlier layers published, none of its memoised indices."""
    again = StepContext(step.batch, step.cache, step.rotary)
    again.selections, again.candidates = dict(step.selections), step.candidates
    return again


def attention64(engine: Parts, scene: Scene, step: StepContext, index: int, run: Run) -> Array:
    """The sublayer row by row: windows from the rings as they were and the step's own rows, entries from blocks."""
    layer, prefix, source = engine.layer(index), f"layers.{index}.attn", engine.source
    u = run.attention_in.double().numpy()
    turns = step.rotary[layer.rope].numpy().astype(np.complex128)[step.batch.positions]
    qr = rms(product(u, source, f"{prefix}.wq_a"), vector(source, f"{prefix}.q_norm.weight"))
    q = rotate(product(qr, source, f"{prefix}.wq_b").reshape(TOKENS, 64, 512), turns[:, None, :])
    own = rotate(rms(product(u, source, f"{prefix}.wkv"), vector(source, f"{prefix}.kv_norm.weight")), turns)
    sink = vector(source, f"{prefix}.attn_sink")
    blocks, slots = scene.cache.blocks.numpy(), run.slots_before.numpy()

    def ring_row(slot: int, position: int) -> Array:
        start = layer.swa.offset + position % layer.swa.rows * layer.swa.row_bytes
        return slots[slot, start : start + layer.swa.row_bytes].view(np.float32).astype(np.float64)

    def entry_row(row: int, entry: int) -> Array:
        assert layer.main is not None
        block, place = scene.entry(layer, row, entry)
        start = layer.main.offset + place * layer.main.row_bytes
        return blocks[block, start : start + layer.main.row_bytes].view(np.float32).astype(np.float64)

    out, first = np.empty((TOKENS, 64, 512)), 0
    for row, count in enumerate(COUNTS):
        for t in range(first, first + count):
            position = HELD[row] + t - first
            rows = [own[first + p - HELD[row]] if p >= HELD[row] else ring_row(scene.slots[row], p)
                    for p in range(max(0, position - 127), position + 1)]  # fmt: skip
            if layer.ratio:
                assert layer.index_source is not None
                chosen = step.selections[layer.index_source].entries[t].tolist()
                rows += [entry_row(row, entry) for entry in chosen if entry >= 0]
                expected = min(512, (position + 1) // layer.ratio)
                assert len(rows) == min(128, position + 1) + expected
            keys = np.stack(rows)
            scores = np.exp(q[t] @ keys.T / np.sqrt(512))
            out[t] = scores @ keys / (scores.sum(1) + np.exp(sink))[:, None]
        first += count
    grouped = rotate(out, turns[:, None, :], back=True).reshape(TOKENS, 8, 4096)
    # wo_a is block diagonal: 1024 rows for each group of eight heads.
    wo_a = matrix(source, f"{prefix}.wo_a").reshape(8, 1024, 4096)
    joined = np.einsum("tgk,grk->tgr", grouped, wo_a, optimize=True).reshape(TOKENS, 8192)
    return product(joined, source, f"{prefix}.wo_b")


@pytest.fixture(scope="module")
def scene(widths: Parts) -> Any:
    made = Scene(widths, HELD, seed=1)
    made.fill(list(KINDS))
    yield made
    del made
    gc.collect()


def test_every_kind_of_layer(widths: Parts, scene: Scene) -> None:
    step = scene.step(COUNTS)
    x, pre = scene.randn(TOKENS, 4, 5120), scene.randn(TOKENS, 4).abs()
    for index in KINDS:
        layer = Layer(widths.source, widths.layer(index), widths.constants, widths.operators)
        saved = scene.saved()
        repeated = run_layer(widths, scene, step_again(step), layer, x, pre)
        scene.restore(saved)
        run = run_layer(widths, scene, step, layer, x, pre)
        for name in ("attention_out", "streams", "pre"):
            found = getattr(run, name)
            assert found.isfinite().all(), (index, name)
            assert torch.equal(found, getattr(repeated, name)), (index, name)
        assert (run.streams != x).any(2).all()
        expected = attention64(widths, scene, step, index, run)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(run.attention_out.numpy() / scale, expected / scale, atol=1e-5, err_msg=str(index))
        x, pre = run.streams, run.pre


def test_every_kind_of_layer_by_the_released_policy(tmp_path_factory: pytest.TempPathFactory) -> None:
    """8-bit and 4-bit caches, 8-bit operands and bf16 streams: finite, and the same bits again."""
    engine = released(tmp_path_factory.mktemp("released"), "released")
    scene = Scene(engine, HELD, seed=2)
    scene.fill(list(KINDS))
    step = scene.step(COUNTS)
    x, pre = scene.randn(TOKENS, 4, 5120).bfloat16(), scene.randn(TOKENS, 4).abs()
    for index in KINDS:
        layer = Layer(engine.source, engine.layer(index), engine.constants, engine.operators)
        saved = scene.saved()
        repeated = run_layer(engine, scene, step_again(step), layer, x, pre)
        scene.restore(saved)
        run = run_layer(engine, scene, step, layer, x, pre)
        assert run.streams.dtype == torch.bfloat16
        assert run.streams.isfinite().all()
        assert torch.equal(run.streams, repeated.streams)
        assert torch.equal(run.pre, repeated.pre)
        assert (run.streams != x).any(2).all()
        x, pre = run.streams, run.pre
