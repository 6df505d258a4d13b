"""Selection at released widths, past the sizes below which indexer and candidates change nothing (trap 46).

32 index heads of 128; 512 entries chosen where 17,003 are visible; 2048 blocks of 8 kept of 2126.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from float64_weights import Array, product, rotate
from released_scene import Parts, Scene

from deepinfer_gen.runtime.model.indexer import Indexer
from deepinfer_gen.runtime.model.rope import rotary_table
from deepinfer_gen.runtime.model.step_context import StepContext

HELD, QUERIES, SHORT = 17_000, 3, 40
# Float32 sums of 128 products and 32 heads against float64.
TOLERANCE = 2e-5


class Scored:
    """One index source run on three queries of a long sequence and one of a short one, and its scores in float64."""

    def __init__(self, engine: Parts, scene: Scene, step: StepContext, index: int) -> None:
        layer, c = engine.layer(index), engine.constants
        self.layer = layer
        indexer = Indexer(engine.source, layer, c, engine.operators)
        count = step.batch.positions.shape[0]
        u, qr = scene.randn(count, 5120), scene.randn(count, 1280)
        assert layer.index_keys is not None
        self.entries = indexer(u, qr, scene.cache.block_rows(layer.index_keys), step)
        self.published = step.candidates

        prefix = f"layers.{index}.attn.indexer"
        turn = step.rotation(layer.rope).numpy().astype(np.complex128)
        q = product(qr.double().numpy(), engine.source, f"{prefix}.wq_b").reshape(count, 32, 128)
        q = rotate(q, turn[:, None, :])
        weight = product(u.double().numpy(), engine.source, f"{prefix}.weights_proj") * 128**-0.5 * 32**-0.5
        self.visible = [(int(p) + 1) // layer.ratio for p in step.batch.positions]
        self.scores = []
        for t, row in enumerate(step.batch.row_of_token.tolist()):
            keys = self._keys(scene, row, self.visible[t])
            self.scores.append((weight[t][:, None] * np.maximum(q[t] @ keys.T, 0)).sum(0))

    def _keys(self, scene: Scene, row: int, count: int) -> Array:
        """The first entries of a sequence, found by the layout's offsets in the blocks' bytes."""
        region = self.layer.index_keys
        assert region is not None
        blocks = scene.cache.blocks.numpy()
        keys = np.empty((count, 128), np.float32)
        for entry in range(count):
            block, place = scene.entry(self.layer, row, entry)
            start = region.offset + place * region.row_bytes
            keys[entry] = blocks[block, start : start + region.row_bytes].view(np.float32)
        return keys.astype(np.float64)


@pytest.fixture(scope="module")
def scene(widths: Parts) -> Scene:
    made = Scene(widths, [HELD, SHORT])
    made.fill([2, 20])
    return made


@pytest.fixture(scope="module")
def sources(widths: Parts, scene: Scene) -> dict[int, Scored]:
    """Layer 2 (ratio 2), layer 20 (publishes candidates) and layer 24 (inside them), in one step."""
    step = scene.step([QUERIES, 1])
    with torch.inference_mode():
        return {index: Scored(widths, scene, step, index) for index in (2, 20, 24)}


def check_best(chosen: list[int], scores: Array, allowed: Any) -> None:
    """``chosen`` are the 512 best of ``allowed``; only scores too close to the last one's may stand in for others."""
    assert chosen == sorted(set(chosen))
    order = sorted(allowed, key=lambda j: -scores[j])
    expected, last = set(order[:512]), scores[order[min(512, len(order)) - 1]]
    assert len(chosen) == min(512, len(order))
    swapped = expected ^ set(chosen)
    assert len(swapped) <= 4
    assert all(abs(scores[j] - last) < TOLERANCE for j in swapped)


def candidates_of(scores: Array, visible: int) -> set[int]:
    """Entries of the 2048 best blocks of 8, the newest block among them whatever its score."""
    blocks = range(-(-visible // 8))
    value = {b: max(scores[8 * b : 8 * b + 8]) for b in blocks}
    value[(visible - 1) // 8] = np.inf
    kept = sorted(blocks, key=lambda b: -value[b])[:2048]
    return {j for b in kept for j in range(8 * b, min(8 * b + 8, visible))}


def chosen_by(source: Scored, t: int) -> list[int]:
    row = source.entries[t]
    valid = row[row >= 0].tolist()
    assert row.tolist() == valid + [-1] * (len(row) - len(valid))
    return valid


def test_trap_46_candidates_are_the_best_2048_blocks(sources: dict[int, Scored]) -> None:
    """Of 2126; a block that is too close to the last one's score may stand in for it."""
    source = sources[20]
    assert source.published is not None
    for t in range(QUERIES):
        # A block that reaches past the newest entry is kept whole; what is not visible scores nothing anyway.
        seen = source.visible[t]
        kept = set(source.published[t, :seen].nonzero().flatten().tolist())
        expected = candidates_of(source.scores[t], seen)
        blocks = [{j // 8 for j in entries} for entries in (kept, expected)]
        assert len(blocks[0]) == 2048
        value = {b: max(source.scores[t][8 * b : 8 * b + 8]) for b in blocks[0] | blocks[1]}
        last = min(value[b] for b in blocks[1] if b != (seen - 1) // 8)
        assert all(abs(value[b] - last) < TOLERANCE for b in blocks[0] ^ blocks[1])
        assert kept == {j for b in blocks[0] for j in range(8 * b, min(8 * b + 8, seen))}


@pytest.mark.parametrize(("index", "seen"), [(2, 8500), (20, 17_001)])
def test_trap_46_a_sparse_selection_is_the_best_512(sources: dict[int, Scored], index: int, seen: int) -> None:
    """8500 pairs or 17,001 entries are seen; layer 20's own selection is not bound by its candidates."""
    source = sources[index]
    assert source.visible[0] == seen
    for t in range(QUERIES):
        check_best(chosen_by(source, t), source.scores[t], range(source.visible[t]))


def test_trap_46_a_later_source_stays_inside_the_candidates(sources: dict[int, Scored]) -> None:
    """2126 blocks are visible, so 78 are no candidates; without them the selection would be another."""
    first, later = sources[20], sources[24]
    for t in range(QUERIES):
        candidates = candidates_of(first.scores[t], first.visible[t])
        assert 16_384 - 7 <= len(candidates) <= 16_384
        chosen = chosen_by(later, t)
        assert set(chosen) <= candidates
        check_best(chosen, later.scores[t], candidates)
        unbound = set(np.argsort(-later.scores[t])[:512].tolist())
        assert len(unbound - candidates) >= 5


def test_a_short_sequence_beside_a_long_one_selects_all_it_sees(sources: dict[int, Scored]) -> None:
    for index, seen in ((2, 20), (20, 41), (24, 41)):
        assert chosen_by(sources[index], QUERIES) == list(range(seen))


def test_the_rotation_of_a_far_position(widths: Parts) -> None:
    """YaRN frequencies of compressed layers by the formula; float32 angles at position 17,002 are good to 2e-3."""
    low, high = 15, 25
    angles = []
    for pair in range(32):
        frequency = 160_000 ** (-2 * pair / 64)
        ramp = min(max((pair - low) / (high - low), 0), 1)
        angles.append(17_002 * (frequency / 16 * ramp + frequency * (1 - ramp)))
    table = rotary_table(widths.plan.rope["compressed"], 64, 17_003)
    np.testing.assert_allclose(table[17_002].numpy(), np.exp(1j * np.array(angles)), atol=2e-3)
