"""Sparse attention at released widths: 64 heads of 512 over 128 window rows and 512 of more than 16,384 entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from released_scene import Parts, Scene

from deepinfer_gen.runtime.kernels.reference.sparse_attention import WindowRows
from deepinfer_gen.runtime.kv_cache import RegionRows

HELD, QUERIES = 17_000, 2


@dataclass
class Attended:
    """Queries, their window and their selection in layer 20's entries."""

    engine: Parts
    scene: Scene
    q: torch.Tensor
    window: torch.Tensor
    sink: torch.Tensor
    chosen: torch.Tensor

    @property
    def region(self) -> RegionRows:
        main = self.engine.layer(20).main
        assert main is not None
        return self.scene.cache.block_rows(main)

    def run(self) -> torch.Tensor:
        step = self.scene.step([QUERIES])
        step.publish(20, self.region, self.chosen)
        index = torch.arange(128).expand(QUERIES, -1) + torch.arange(QUERIES).unsqueeze(1)
        window = WindowRows(self.window, index, torch.ones_like(index, dtype=torch.bool))
        rows = step.selections[20].rows(self.region)
        return self.engine.operators.sparse_attention(self.q, window, rows, self.sink, scale=512**-0.5)

    def stored(self, entry: int) -> torch.Tensor:
        """The stored row of an entry, to read or to overwrite."""
        block, place = self.scene.entry(self.engine.layer(20), 0, entry)
        return self.region.grid[block, place]


@pytest.fixture
def attended(widths: Parts) -> Attended:
    """512 entries over the whole context for the first query, 300 for the second."""
    scene = Scene(widths, [HELD], seed=3)
    scene.fill([20])
    chosen = torch.full((QUERIES, 512), -1)
    for t, count in enumerate((512, 300)):
        chosen[t, :count] = torch.randperm(HELD, generator=scene.random)[:count].sort().values
    q, window, sink = scene.randn(QUERIES, 64, 512), scene.randn(QUERIES + 127, 512), scene.randn(64)
    return Attended(widths, scene, q, window, sink, chosen)


def test_against_a_loop_over_heads(attended: Attended) -> None:
    found = attended.run().double().numpy()
    q, window, sink = (x.double().numpy() for x in (attended.q, attended.window, attended.sink))
    for t in range(QUERIES):
        entries = [attended.stored(j).double().numpy() for j in attended.chosen[t].tolist() if j >= 0]
        rows = np.concatenate([window[t : t + 128], np.stack(entries)])
        for head in range(64):
            scores = rows @ q[t, head] / np.sqrt(512)
            top = max(scores.max(), sink[head])
            weights = np.exp(scores - top)
            expected = weights @ rows / (weights.sum() + np.exp(sink[head] - top))
            np.testing.assert_allclose(found[t, head], expected, atol=1e-5)


def test_only_the_selected_rows_are_read(attended: Attended) -> None:
    """Every other row of the buffer becomes NaN: nothing changes. One selected row changes: one query does."""
    before = attended.run()
    keep = {j: attended.stored(j).clone() for j in attended.chosen.flatten().tolist() if j >= 0}
    attended.region.grid.fill_(torch.nan)
    for j, row in keep.items():
        attended.stored(j).copy_(row)
    assert torch.equal(attended.run(), before)

    first, second = (set(attended.chosen[t].tolist()) for t in range(QUERIES))
    only_second = min(second - first - {-1})
    attended.stored(only_second).add_(1.0)
    after = attended.run()
    assert torch.equal(after[0], before[0])
    assert (after[1] != before[1]).any(1).all()
