"""What a step writes, what padding may touch, and rolling back by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.runtime.plan_types import Region


def expected_writes(engine: Any, sequence: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of blocks and slots that storing positions ``start``..``stop`` may change, from the layout alone."""
    layout = engine.layout
    blocks = np.zeros((layout["block"]["count"], layout["block"]["bytes"]), bool)
    slots = np.zeros((layout["state"]["count"], layout["state"]["slot_bytes"]), bool)
    for region in layout["block"]["regions"]:
        for entry in {p // region["ratio"] for p in range(start, stop) if (p + 1) % region["ratio"] == 0}:
            for part in (region["main"], region["index"]):
                begin = part["offset"] + entry % part["rows"] * part["row_bytes"]
                blocks[sequence.table[entry // part["rows"]], begin : begin + part["row_bytes"]] = True
    for region in layout["state"]["regions"]:
        for position in range(start, stop):
            begin = region["offset"] + position % region["rows"] * region["row_bytes"]
            slots[sequence.slot, begin : begin + region["row_bytes"]] = True
    return blocks, slots


@pytest.mark.parametrize(("before", "count"), [(0, 5), (130, 1), (131, 7), (20, 200)])
def test_a_step_writes_only_its_rows(
    before: int, count: int, make_driver: Any, engine: Any, oracle: Mapping[str, Any]
) -> None:
    driver = make_driver()
    sequence = driver.add(oracle["p300_ids"])
    if before:
        driver.step([(sequence, before)])
    batch = driver.batch([(sequence, count)])
    earlier = driver.cache.blocks.clone(), driver.cache.slots.clone()
    driver.model(batch, driver.cache, torch.tensor([0]))
    changed = [(a != b).numpy() for a, b in zip(earlier, (driver.cache.blocks, driver.cache.slots), strict=True)]
    allowed = expected_writes(engine, sequence, before, before + count)
    for found, permitted in zip(changed, allowed, strict=True):
        assert not (found & ~permitted).any()
        assert found.any(1).tolist() == permitted.any(1).tolist()
        assert found.sum() > 0.9 * permitted.sum(), "the rows themselves must be written"


def test_b23_b24_padding_writes_only_block_0_and_slot_0(
    make_driver: Any, engine: Any, oracle: Mapping[str, Any]
) -> None:
    driver, alone = make_driver(), make_driver()
    first, second = driver.add(oracle["p129_ids"]), alone.add(oracle["p129_ids"])
    driver.step([(first, 128)])
    alone.step([(second, 128)])
    earlier = driver.cache.blocks.clone(), driver.cache.slots.clone()
    padded, plain = driver.step([(first, 1)], padding=[1, 3, 0]), alone.step([(second, 1)])
    np.testing.assert_allclose(padded.numpy(), plain.numpy(), rtol=0, atol=2e-5)
    blocks, slots = expected_writes(engine, first, 128, 129)
    blocks[0], slots[0] = True, True
    assert not ((earlier[0] != driver.cache.blocks).numpy() & ~blocks).any()
    assert not ((earlier[1] != driver.cache.slots).numpy() & ~slots).any()
    assert torch.isfinite(driver.cache.slots[0].view(torch.float32)).all()
    assert torch.isfinite(driver.cache.blocks[0].view(torch.float32)).all()


def test_bytes_of_other_owners_cannot_reach_the_output(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    """Fresh caches full of NaN (an unwritten block, another owner's slot) change nothing."""
    driver = make_driver()
    driver.cache.blocks.fill_(0xFF)
    driver.cache.slots.fill_(0xFF)
    sequence = driver.add(oracle["p129_ids"])
    # After one token no entry of ratio 2 exists: what pads point at is still unwritten.
    logits = torch.cat([driver.step([(sequence, 1)]), driver.prefill(sequence, 50)])
    np.testing.assert_allclose(logits.numpy(), oracle["p129_logits"], rtol=0, atol=1e-4)


def test_trap_34_rejected_tokens_roll_back_by_position(
    make_driver: Any, helpers: Any, oracle: Mapping[str, Any], checkpoint: Any
) -> None:
    """Steps of 6 tokens of which some are wrong: going back to the last right one copies nothing and loses nothing."""
    engine = helpers.tiny_engine(oracle, nextn_room=5)
    driver = make_driver(engine, load_model(engine.plan, helpers.kernel_table(helpers.tiles), checkpoint))
    sequence = driver.add(oracle["p129_ids"])
    driver.prefill(sequence)
    greedy, done = oracle["p129_greedy"].tolist(), 0
    for accepted in (0, 3, 5, 1, 0, 2, 4, 0, 0, 5):
        right = greedy[done : done + accepted + 1]
        sequence.ids += right + [77] * (6 - len(right))
        logits = driver.step([(sequence, 6)])[: accepted + 1].argmax(1).tolist()
        done += accepted + 1
        assert logits == greedy[done - accepted : done + 1]
        sequence.done = 129 + done
        del sequence.ids[sequence.done :]


def test_clone_and_zero(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    """A copy of the slot and the last block is a second sequence that continues alone."""
    driver = make_driver()
    parent = driver.add(oracle["p128_ids"][:121])
    driver.prefill(parent)
    child = driver.add(parent.ids)
    child.done, child.table = parent.done, [*parent.table[:-1], driver.free.pop()]
    driver.cache.clone_states(torch.tensor([[parent.slot, child.slot]]))
    driver.cache.clone_blocks(torch.tensor([[parent.table[-1], child.table[-1]]]))
    parent.ids += [9] * 7
    child.ids += oracle["p128_ids"][121:].tolist()
    logits = driver.step([(parent, 7), (child, 7)])[7:]
    np.testing.assert_allclose(logits.numpy(), oracle["p128_logits"][121:], rtol=0, atol=1e-4)
    driver.cache.zero_states(torch.tensor([child.slot]))
    assert not driver.cache.slots[child.slot].any()
    assert driver.cache.slots[parent.slot].any()


def test_a_region_that_the_layout_lacks_is_refused(engine: Any) -> None:
    cache = KVCache(engine.layout, torch.device("cpu"))
    with pytest.raises(InputError, match=r"DI341.*offset=64"):
        cache.slot_rows(Region(64, 129, 256, "fp32"))


def test_a_format_without_an_encoder_is_named(engine: Any) -> None:
    region = {"name": "swa.0", "offset": 0, "rows": 134, "row_bytes": 384, "format": "int6_g64", "bytes": 51456}
    layout = {"block": engine.layout["block"], "state": {"slot_bytes": 51456, "count": 2, "regions": [region]}}
    cache = KVCache(layout, torch.device("cpu"))
    with pytest.raises(InputError, match=r"DI340.*int6_g64.*built: bf16, fp32, mxfp4_g32, mxfp8_g32, nvfp4_g16"):
        cache.slot_rows(Region(0, 134, 384, "int6_g64"))
