"""Silent wrong results inside attention, compressor and indexer, each against its formula written out here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_tiny import compiled_tiny
from recorder import Recorder

from deepinfer_gen.runtime.kv_cache import RegionRows
from deepinfer_gen.runtime.model.step_context import StepContext

HEADS, HEAD_DIM, INDEX_HEADS, INDEX_DIM, ROPE, HIDDEN = 4, 64, 16, 32, 16, 128
FIRST, COUNT = 5, 6
"""Every step below runs the positions FIRST .. FIRST + COUNT - 1."""

BASE = [10000 ** (-2 * i / ROPE) for i in range(8)]
# Frequencies of theta 160000 slowed by 16; the ramp of the tiny model goes from pair 0 to pair 2.
_WIDE = [160000 ** (-2 * i / ROPE) for i in range(8)]
COMPRESSED = [f / 16 * ramp + f * (1 - ramp) for f, ramp in zip(_WIDE, [0, 0.5] + [1] * 6, strict=True)]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * weight.float()


def rotated(x: torch.Tensor, frequencies: list[float], positions: list[int], *, back: bool = False) -> torch.Tensor:
    """Adjacent pairs of the last channels of x [T, ..., D], turned by position x frequency."""
    out = x.clone()
    for t, position in enumerate(positions):
        for pair, frequency in enumerate(frequencies):
            angle = torch.tensor(position * frequency * (-1 if back else 1), dtype=torch.float64)
            at = x.shape[-1] - ROPE + 2 * pair
            a, b = x[t, ..., at].double(), x[t, ..., at + 1].double()
            out[t, ..., at] = a * angle.cos() - b * angle.sin()
            out[t, ..., at + 1] = a * angle.sin() + b * angle.cos()
    return out


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


POSITIONS = list(range(FIRST, FIRST + COUNT))


@pytest.fixture
def u() -> torch.Tensor:
    return torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def step(make_driver: Any) -> StepContext:
    """A step of one sequence whose first tokens have been run."""
    driver = make_driver()
    sequence = driver.add(range(100, 100 + FIRST + COUNT))
    driver.step([(sequence, FIRST)])
    context: StepContext = driver.model.begin(driver.batch([(sequence, COUNT)]), driver.cache)
    return context


@pytest.fixture
def run(model: Any, step: StepContext, u: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``run(layer)`` gives what the operators of its attention saw."""

    def attention(layer: int) -> Recorder:
        module = model.layers[layer].attention
        recorder = Recorder(model.operators)
        for part in (module, module.compressor, module.index_keys, module.indexer):
            if part is not None:
                monkeypatch.setattr(part, "operators", recorder)
        with torch.inference_mode():
            module(u, step)
        return recorder

    return attention


def latent_query(module: Any, u: torch.Tensor) -> torch.Tensor:
    return norm(u @ module.wq_a.decode().t(), module.q_norm)


def test_trap_1_query_heads_are_not_normalised(model: Any, run: Any, u: torch.Tensor) -> None:
    module = model.layers[0].attention
    expected = (latent_query(module, u) @ module.wq_b.decode().t()).view(COUNT, HEADS, HEAD_DIM)
    assert (expected.square().mean(-1).sqrt() - 1).abs().max() > 0.1, "a norm of each head must show here"
    (((q, *_), _),) = run(0).calls["sparse_attention"]
    close(q, rotated(expected, BASE, POSITIONS))


@pytest.mark.parametrize(("layer", "frequencies"), [(0, BASE), (2, COMPRESSED), (7, COMPRESSED)])
def test_trap_9_a_compressed_layer_rotates_its_window_by_the_compressed_table(
    layer: int, frequencies: list[float], model: Any, step: StepContext, u: torch.Tensor
) -> None:
    module = model.layers[layer].attention
    expected = rotated(norm(u @ module.wkv.decode().t(), module.kv_norm), frequencies, POSITIONS)
    with torch.inference_mode():
        close(module.encode_rows(u, step), expected)
    other = COMPRESSED if frequencies is BASE else BASE
    assert (rotated(expected, other, POSITIONS) - rotated(expected, frequencies, POSITIONS)).abs().max() > 0.1


@pytest.mark.parametrize(("layer", "frequencies"), [(1, BASE), (6, COMPRESSED)])
def test_trap_11_outputs_are_turned_back_by_the_position_of_the_query(
    layer: int, frequencies: list[float], run: Any
) -> None:
    calls = run(layer).calls
    ((_, out),), (((grouped, _), _),) = calls["sparse_attention"], calls["grouped_linear"]
    close(grouped.reshape(COUNT, HEADS, HEAD_DIM), rotated(out, frequencies, POSITIONS, back=True))
    assert (grouped.reshape(out.shape) - out).abs().max() > 0.1


def test_trap_29_each_group_of_heads_has_its_own_rows_of_the_projection(model: Any, run: Any) -> None:
    """``wo_a`` [groups x 32, 128] is block diagonal: group g multiplies its heads with its 32 rows, and no others."""
    (((grouped, _), projected),) = run(0).calls["grouped_linear"]
    stored = model.layers[0].attention.wo_a.decode()
    assert (grouped.shape, stored.shape) == ((COUNT, 2, 128), (2 * 32, 128))
    close(projected, torch.cat([grouped[:, g] @ stored[32 * g : 32 * g + 32].t() for g in range(2)], 1))


def index_key(module: Any, latent: torch.Tensor) -> torch.Tensor:
    """Of layer 6, where each token is an entry: the key of a latent, before its rotation."""
    return norm(latent @ module.index_keys.wk.decode().t(), module.index_keys.norm)


def test_trap_6_index_queries_and_keys_are_rotated_by_position_only(model: Any, run: Any, u: torch.Tensor) -> None:
    """No Hadamard matrix mixes their channels: those before the rotated tail are plain projections."""
    module, calls = model.layers[6].attention, run(6).calls
    (((q, _, _, _, _), _),) = calls["index_scores"]
    plain = (latent_query(module, u) @ module.indexer.wq_b.decode().t()).view(COUNT, INDEX_HEADS, INDEX_DIM)
    close(q, rotated(plain, COMPRESSED, POSITIONS))
    (key,) = [stored for (region, _, _, stored), _ in calls["kv_scatter"] if stored.shape[1] == INDEX_DIM]
    latent = norm(u @ module.compressor.wkv.decode().t(), module.compressor.norm)
    close(key, rotated(index_key(module, latent), COMPRESSED, POSITIONS))


def test_trap_7_index_keys_come_from_the_plain_latent(
    tmp_path: Path, u: torch.Tensor, monkeypatch: pytest.MonkeyPatch, make_driver: Any
) -> None:
    """Neither from its rotated form nor from what the cache keeps of it; caches have the released formats here."""
    tiny = compiled_tiny(tmp_path, numerics__policy="float32")
    driver = make_driver(tiny, tiny.model)
    sequence = driver.add(range(100, 100 + FIRST + COUNT))
    driver.step([(sequence, FIRST)])
    step = tiny.model.begin(driver.batch([(sequence, COUNT)]), driver.cache)
    layer = tiny.plan.layers[6]
    module: Any = tiny.model.layers[6].attention
    recorder = Recorder(tiny.model.operators)
    monkeypatch.setattr(module.index_keys, "operators", recorder)
    with torch.inference_mode():
        module(u, step)
    (((_, _, _, stored), _),) = recorder.calls["kv_scatter"]

    assert layer.main is not None
    assert layer.index_keys is not None
    main, keys = step.cache.block_rows(layer.main), step.cache.block_rows(layer.index_keys)
    assert main.codec.storage == keys.codec.storage == torch.uint8
    latent = norm(u @ module.compressor.wkv.decode().t(), module.compressor.norm)
    turned = rotated(latent, COMPRESSED, POSITIONS)
    same = [share(keys, stored, index_key(module, source)) for source in (latent, turned, passed(main, latent))]
    assert same[0] > 0.98, "but for a rounding"
    assert max(same[1:]) < 0.9


def share(keys: RegionRows, stored: torch.Tensor, key: torch.Tensor) -> float:
    """How much of the stored bytes a key explains."""
    return float((keys.codec.encode(rotated(key, COMPRESSED, POSITIONS)) == stored).float().mean())


def passed(region: RegionRows, values: torch.Tensor) -> torch.Tensor:
    return region.codec.decode(region.codec.encode(values))
