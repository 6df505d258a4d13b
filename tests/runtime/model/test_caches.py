"""What a step writes, what padding may touch, and rolling back by position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from compiled_tiny import CompiledTiny, compiled_tiny

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.draft_context import DraftRows
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.runtime.plan_types import Region

Formats = tuple[tuple[str, str], ...]

STORES = [
    pytest.param(policy, formats, layout, id=f"{name}-{layout}")
    for name, policy, formats, layouts in (
        ("quantised", "float32", (), ("interleaved", "split")),
        ("mixed", "float32", (("main", "fp32"), ("swa", "bf16")), ("interleaved", "split")),
        ("bf16", "float32", (("main", "bf16"), ("index", "bf16"), ("swa", "bf16")), ("split",)),
        ("fp32", "float32_unquantized", (), ("interleaved",)),
    )
    for layout in layouts
]
"""Every record format, rows with and without scales side by side; without any scales both layouts are one."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``compiled(policy, formats, layout)``: such an engine, and the model that runs it.

    With ``nextn`` it drafts as many tokens.
    """
    folder = tmp_path_factory.mktemp("specs")

    @cache
    def build(policy: str, formats: Formats, layout: str, nextn: int = 0) -> tuple[CompiledTiny, Any]:
        fields = {f"kv__{kind}_format": cache_format for kind, cache_format in formats}
        sizes = {"kv__num_blocks": 200, "kv__block_size": 16, "limits__max_model_len": 400}
        fields |= {"numerics__policy": policy, "kv__row_layout": layout}
        tiny = compiled_tiny(folder, speculative__nextn=nextn, **sizes, **fields)
        return tiny, tiny.model

    return build


def places(rows: Mapping[str, Any], row: int) -> list[tuple[int, int]]:
    """First and past-the-end byte of each run of a row, from its entry in the layout."""
    scales = rows.get("scales")
    if scales is None:
        begin = rows["offset"] + row * rows["row_bytes"]
        return [(begin, begin + rows["row_bytes"])]
    data, scale = rows["offset"] + row * scales["data_stride"], scales["offset"] + row * scales["stride"]
    return [(data, data + scales["data_bytes"]), (scale, scale + scales["bytes"])]


def expected_writes(engine: Any, sequence: Any, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of blocks and slots that storing positions ``start``..``stop`` may change, from the layout alone."""
    layout = engine.layout
    blocks = np.zeros((layout["block"]["count"], layout["block"]["bytes"]), bool)
    slots = np.zeros((layout["state"]["count"], layout["state"]["slot_bytes"]), bool)
    for region in layout["block"]["regions"]:
        for entry in {p // region["ratio"] for p in range(start, stop) if (p + 1) % region["ratio"] == 0}:
            for part in (region["main"], region["index"]):
                for begin, end in places(part, entry % part["rows"]):
                    blocks[sequence.table[entry // part["rows"]], begin:end] = True
    for region in layout["state"]["regions"]:
        for position in range(start, stop):
            for begin, end in places(region, position % region["rows"]):
                slots[sequence.slot, begin:end] = True
    return blocks, slots


@pytest.mark.parametrize(("policy", "formats", "layout"), STORES)
@pytest.mark.parametrize(("before", "count"), [(0, 5), (130, 1), (131, 7), (20, 200)])
def test_a_step_writes_only_its_rows(
    before: int,
    count: int,
    policy: str,
    formats: Formats,
    layout: str,
    make_driver: Any,
    compiled: Any,
    oracle: Mapping[str, Any],
) -> None:
    engine, model = compiled(policy, formats, layout)
    driver = make_driver(engine, model)
    sequence = driver.add(oracle["p300_ids"])
    # Zero is a common code; over this pattern few bytes are written without a change.
    driver.cache.blocks.fill_(0xA5)
    driver.cache.slots.fill_(0xA5)
    if before:
        driver.step([(sequence, before)])
    batch = driver.batch([(sequence, count)])
    allowed = expected_writes(engine, sequence, before, before + count)
    earlier = driver.cache.blocks.clone(), driver.cache.slots.clone()
    driver.model(batch, driver.cache, torch.tensor([0]))
    changed = [(a != b).numpy() for a, b in zip(earlier, (driver.cache.blocks, driver.cache.slots), strict=True)]
    for found, permitted in zip(changed, allowed, strict=True):
        assert not (found & ~permitted).any()
        assert found.any(1).tolist() == permitted.any(1).tolist()
        # The upper byte of a bf16 value is often that of the row before it.
        assert found.sum() > 0.8 * permitted.sum(), "the rows themselves must be written"


@pytest.mark.parametrize(("policy", "formats", "layout"), STORES)
def test_several_rows_and_their_drafts_write_only_theirs(
    policy: str, formats: Formats, layout: str, make_driver: Any, compiled: Any, oracle: Mapping[str, Any]
) -> None:
    """A verification row, a chunk and padding beside two sequences that wait; the rings of the draft layers too."""
    engine, model = compiled(policy, formats, layout, 5)
    driver = make_driver(engine, model)
    rows = [(driver.add(oracle["p300_ids"]), before, count) for before, count in ((131, 6), (20, 30), (3, 0), (140, 0))]
    driver.cache.blocks.fill_(0xA5)
    driver.cache.slots.fill_(0xA5)
    for sequence, before, _ in rows:
        driver.step([(sequence, before)])
    batch = driver.batch([(sequence, count) for sequence, _, count in rows if count], padding=[2])
    parts = [expected_writes(engine, sequence, before, before + count) for sequence, before, count in rows]
    allowed = [np.logical_or.reduce(part) for part in zip(*parts, strict=True)]
    earlier = driver.cache.blocks.clone(), driver.cache.slots.clone()
    driver.model(batch, driver.cache, torch.tensor([0]))
    stepped = driver.cache.blocks.clone(), driver.cache.slots.clone()
    for before, after, permitted in zip(earlier, stepped, allowed, strict=True):
        found = (before != after).numpy()[1:]
        assert not (found & ~permitted[1:]).any()
        assert found.any(1).tolist() == permitted[1:].any(1).tolist()
        assert found.sum() > 0.8 * permitted[1:].sum(), "the rows themselves must be written"
    assert len([r for r in engine.layout["state"]["regions"] if r["kind"] == "swa"]) == 13, "draft layers among them"
    places_of_rows = torch.tensor([sequence.done for sequence, *_ in rows])
    slots = torch.tensor([sequence.slot for sequence, *_ in rows])
    model.draft(DraftRows(torch.full_like(slots, 7), places_of_rows, slots), driver.cache)
    assert torch.equal(driver.cache.blocks, stepped[0])
    assert torch.equal(driver.cache.slots, stepped[1])


@pytest.mark.parametrize(("policy", "formats", "layout"), STORES)
def test_b23_b24_padding_writes_only_block_0_and_slot_0(
    policy: str, formats: Formats, layout: str, make_driver: Any, compiled: Any, oracle: Mapping[str, Any]
) -> None:
    engine, model = compiled(policy, formats, layout)
    driver = make_driver(engine, model)
    first = driver.add(oracle["p129_ids"])
    driver.step([(first, 128)])
    earlier = driver.cache.blocks.clone(), driver.cache.slots.clone()
    driver.step([(first, 1)], padding=[1, 3, 0])
    blocks, slots = expected_writes(engine, first, 128, 129)
    blocks[0], slots[0] = True, True
    assert not ((earlier[0] != driver.cache.blocks).numpy() & ~blocks).any()
    assert not ((earlier[1] != driver.cache.slots).numpy() & ~slots).any()
    assert driver.cache.slots[0].any()
    for layer in engine.plan.layers:
        window = driver.cache.slot_rows(layer.swa)
        assert torch.isfinite(window.read(window.offsets(torch.tensor(0), torch.arange(window.rows)))).all()


def test_padding_changes_no_output(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver, alone = make_driver(), make_driver()
    first, second = driver.add(oracle["p129_ids"]), alone.add(oracle["p129_ids"])
    driver.step([(first, 128)])
    alone.step([(second, 128)])
    padded, plain = driver.step([(first, 1)], padding=[1, 3, 0]), alone.step([(second, 1)])
    np.testing.assert_allclose(padded.numpy(), plain.numpy(), rtol=0, atol=2e-5)


def test_bytes_of_other_owners_cannot_reach_the_output(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    """Fresh caches full of NaN (an unwritten block, another owner's slot) change nothing."""
    driver = make_driver()
    driver.cache.blocks.fill_(0xFF)
    driver.cache.slots.fill_(0xFF)
    sequence = driver.add(oracle["p129_ids"])
    # After one token no entry of ratio 2 exists: what pads point at is still unwritten.
    logits = torch.cat([driver.step([(sequence, 1)]), driver.prefill(sequence, 50)])
    np.testing.assert_allclose(logits.numpy(), oracle["p129_logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_unwritten_records_cannot_reach_the_output(
    layout: str, make_driver: Any, compiled: Any, oracle: Mapping[str, Any]
) -> None:
    """Quantised rows too: 0xFF is NaN as data and as scale."""
    logits = []
    for byte in (0x00, 0xFF):
        driver = make_driver(*compiled("float32", (), layout))
        driver.cache.blocks.fill_(byte)
        driver.cache.slots.fill_(byte)
        sequence = driver.add(oracle["p129_ids"])
        logits.append(torch.cat([driver.step([(sequence, 1)]), driver.prefill(sequence, 50)]))
    assert torch.equal(*logits)


def test_both_row_layouts_compute_the_same_bits(make_driver: Any, compiled: Any, oracle: Mapping[str, Any]) -> None:
    drivers = [make_driver(*compiled("float32", (), layout)) for layout in ("interleaved", "split")]
    logits = [d.prefill(d.add(oracle["p300_ids"]), 90) for d in drivers]
    assert torch.equal(*logits)
    assert not torch.equal(drivers[0].cache.slots, drivers[1].cache.slots), "their bytes lie elsewhere"
    for one, other in zip(*(d.layout["state"]["regions"] for d in drivers), strict=True):
        for row in range(one["rows"]):
            records = [
                torch.cat([d.cache.slots[:, a:b] for a, b in places(entry, row)], 1)
                for d, entry in zip(drivers, (one, other), strict=True)
            ]
            assert torch.equal(*records)


@pytest.mark.parametrize(("policy", "formats", "layout"), STORES)
def test_attention_reads_what_was_stored(
    policy: str,
    formats: Formats,
    layout: str,
    make_driver: Any,
    compiled: Any,
    oracle: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In prefill too: each row of a step that attention is given is the decoded record that the step leaves behind."""
    engine, model = compiled(policy, formats, layout)
    driver = make_driver(engine, model)
    given: list[torch.Tensor] = []
    attend = ReferenceOperators.sparse_attention

    def recorded(self: Any, q: Any, window: Any, *rest: Any, **named: Any) -> Any:
        given.append(window.rows)
        return attend(self, q, window, *rest, **named)

    monkeypatch.setattr(ReferenceOperators, "sparse_attention", recorded)
    sequence = driver.add(oracle["p129_ids"])
    for start, count in ((0, 100), (100, 29)):
        given.clear()
        driver.step([(sequence, count)])
        for layer, rows in zip(engine.plan.layers, given, strict=True):
            ring = driver.cache.slot_rows(layer.swa)
            position = torch.arange(start, start + count)
            held = ring.read(ring.offsets(torch.tensor(sequence.slot), position % ring.rows))
            assert torch.equal(rows[-count:], held)


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
