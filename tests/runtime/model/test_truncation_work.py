"""What a truncated prefill computes and writes, row by row, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled_tiny import compiled_tiny
from paged_driver import UNWRITTEN, Driver

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.runtime.plan_types import YocoPlan

MakeDriver = Callable[..., Any]
CHUNKS = ((0, 100), (100, 220), (220, 300), (300, 301))
"""Of a prompt of 300 that keeps 140: before the floor of 160, across it, behind it; then one decode row."""


def rows_holding(grid: torch.Tensor, unit: int) -> set[int]:
    """Rows of a unit of a region that something was written to."""
    filled = torch.from_numpy(np.full(4, UNWRITTEN, np.uint8)).view(torch.int32)
    return set(torch.nonzero((grid[unit].view(torch.int32) != filled).any(1)).view(-1).tolist())


@pytest.mark.parametrize(("mode", "floor"), [("compact", 160), ("mask", 0)])
def test_trap_40_each_step_writes_exactly_its_rows(
    mode: str, floor: int, truncated: MakeDriver, oracle: Mapping[str, Any]
) -> None:
    """All rows of the block KV, once; rows from the floor on of the rings behind the cut."""
    driver = truncated(mode)
    sequence = driver.add([*oracle["p300_ids"], 7])
    sequence.prompt = 300
    layers = driver.model.plan.layers
    for start, stop in CHUNKS:
        driver.cache.blocks[1:].fill_(UNWRITTEN)
        driver.cache.slots.fill_(UNWRITTEN)
        driver.step([(sequence, stop - start)], outputs=torch.zeros(0, dtype=torch.int64))
        for layer in layers:
            first = max(start, floor if layer.index >= 6 else 0, stop - layer.swa.rows)
            ring = driver.cache.slot_rows(layer.swa).grid
            assert rows_holding(ring, sequence.slot) == {p % layer.swa.rows for p in range(first, stop)}, layer.index
            if layer.kv_source != layer.index:
                continue
            entries = {p // layer.ratio for p in range(start, stop) if (p + 1) % layer.ratio == 0}
            for region in (layer.main, layer.index_keys):
                grid = driver.cache.block_rows(region).grid
                found = {i * region.rows + r for i, b in enumerate(sequence.table) for r in rows_holding(grid, b)}
                assert found == entries, layer.index
        others = sorted(set(range(1, len(driver.cache.blocks))) - set(sequence.table))
        assert (driver.cache.blocks[others] == UNWRITTEN).all()


@pytest.mark.parametrize("mode", ["compact", "mask"])
def test_rows_computed_and_written_are_counted(mode: str, truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    driver = truncated(mode)
    sequence = driver.add([*oracle["p300_ids"], 7])
    sequence.prompt = 300
    for (start, stop), kept in zip(CHUNKS, (0, 60, 80, 1), strict=True):
        count = stop - start
        late = kept if mode == "compact" else count
        driver.step([(sequence, count)], outputs=torch.zeros(0, dtype=torch.int64))
        work = driver.model.counts
        assert work.computed == {**dict.fromkeys(range(6), count), **dict.fromkeys(range(6, 10), late)}
        assert [work.written["swa", layer] for layer in range(10)] == [count] * 6 + [late] * 4
        pairs = stop // 2 - start // 2
        for kind in ("main", "index"):
            assert {layer: work.written[kind, layer] for layer in (2, 4, 6)} == {2: pairs, 4: pairs, 6: count}
        # The accumulators of ratio 2 are rings of two rows here.
        assert {layer: work.written["ca_state", layer] for layer in (2, 4)} == dict.fromkeys((2, 4), min(count, 2))


def test_a_step_that_runs_token_by_token_is_counted_whole(
    helpers: Any, checkpoint: Any, oracle: Mapping[str, Any]
) -> None:
    engine = helpers.tiny_engine(oracle, yoco=YocoPlan("compact", 6, 128))
    plan = helpers.replace(engine.plan, batch_invariant=True)
    driver = Driver(load_model(plan, helpers.kernel_table(helpers.tiles), checkpoint), engine.layout, fill=UNWRITTEN)
    sequence = driver.add(oracle["p129_ids"])
    # Padding rows are left out there.
    driver.step([(sequence, 3)], padding=[2, 0], outputs=torch.tensor([2]))
    assert driver.model.counts.computed == {**dict.fromkeys(range(6), 3), **dict.fromkeys(range(6, 10), 2)}
    assert driver.model.counts.written["main", 6] == 3


def test_trap_40_block_kv_is_that_of_a_full_prefill(
    truncated: MakeDriver, make_driver: MakeDriver, oracle: Mapping[str, Any]
) -> None:
    """Bit for bit: entries and index keys of the first consumer layer come from all rows."""
    caches = []
    for driver in (make_driver(), truncated("compact", 6, 129), truncated("mask", 6, 129)):
        driver.cache.blocks.zero_()
        sequence = driver.add(oracle["p300_ids"])
        driver.step([(sequence, 300)], outputs=torch.tensor([299]))
        caches.append(driver.cache.blocks[sequence.table])
    assert torch.equal(caches[0], caches[1])
    assert torch.equal(caches[0], caches[2])


@pytest.mark.parametrize("mode", ["compact", "mask"])
def test_logits_of_a_dropped_row_are_refused(mode: str, truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    driver = truncated(mode)
    sequence = driver.add(oracle["p300_ids"])
    driver.step([(sequence, 100)], outputs=torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"the step's token 59 .* drops: the step has 120 tokens and keeps 60"):
        driver.step([(sequence, 120)], outputs=torch.tensor([119, 60, 59]))
    logits = driver.step([(sequence, 120)], outputs=torch.tensor([119, 60]))
    assert torch.isfinite(logits).all()


def test_a_step_without_tokens_runs(truncated: MakeDriver, make_driver: MakeDriver) -> None:
    """What a rank does whose peers prefill while it has nothing to."""
    for driver in (make_driver(), truncated()):
        for padding in ([], [0, 0]):
            logits = driver.step([], padding=padding, outputs=torch.zeros(0, dtype=torch.int64))
            assert logits.shape == (0, 512)
            assert set(driver.model.counts.computed.values()) == {0}


@pytest.mark.parametrize("policy", ["float32", "bf16", "released"])
def test_every_policy_runs_a_chunk_that_keeps_no_row(policy: str, oracle: Mapping[str, Any], tmp_path: Path) -> None:
    tiny = compiled_tiny(tmp_path, yoco__mode="compact", numerics__policy=policy)
    driver = Driver(tiny.model, tiny.layout, fill=UNWRITTEN)
    sequence = driver.add(oracle["p300_ids"])
    driver.step([(sequence, 100)], outputs=torch.zeros(0, dtype=torch.int64))
    assert driver.model.counts.computed == {**dict.fromkeys(range(6), 100), **dict.fromkeys(range(6, 10), 0)}
    logits = driver.step([(sequence, 200)], outputs=torch.tensor([60, 199]))
    assert driver.model.counts.computed == {**dict.fromkeys(range(6), 200), **dict.fromkeys(range(6, 10), 140)}
    assert torch.isfinite(logits).all()


def test_padding_rows_are_kept(truncated: MakeDriver, oracle: Mapping[str, Any]) -> None:
    """A decode row beside padding: padding has no prompt, so no floor."""
    found = []
    for padding in ([], [3, 1, 0]):
        driver = truncated()
        sequence = driver.add([*oracle["p300_ids"], 7])
        sequence.prompt = 300
        driver.step([(sequence, 300)], outputs=torch.tensor([299]))
        driver.cache.slots[0].zero_()
        found.append(driver.step([(sequence, 1)], padding=padding).numpy())
        assert set(driver.model.counts.computed.values()) == {1 + sum(padding)}
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (YocoPlan("drop", 6, 140), "DI425.*mode='drop'.*compact, mask"),
        (YocoPlan("compact", 6, 127), "DI427.*keeps 127 tokens.* is 128"),
        (YocoPlan("mask", 10, 140), "DI425.*first_consumer_layer=10.*10 layers"),
        (YocoPlan("mask", -1, 140), "DI425.*first_consumer_layer=-1"),
        (YocoPlan("mask", 0, 140), "DI426.*layer [0-9] (is a KV source|has an Engram).*from layer 0 on"),
        (YocoPlan("compact", 5, 140), "DI426.*layer 6 is a KV source.*from layer 5 on only the last 140"),
        (YocoPlan("compact", 4, 140), "DI426.*layer 4 has an Engram"),
    ],
)
def test_a_plan_that_cannot_be_truncated_is_refused(
    plan: YocoPlan, message: str, engine: Any, helpers: Any, checkpoint: Any
) -> None:
    with pytest.raises(InputError, match=message):
        load_model(helpers.replace(engine.plan, yoco=plan), helpers.kernel_table(helpers.tiles), checkpoint)
