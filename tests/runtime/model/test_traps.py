"""Silent wrong results that are checked on the whole model or on its step indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from draft_and_verify import draft

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.reference import hyper_connection, norm
from deepinfer_gen.runtime.model import engram
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.runtime.model.step_context import StepContext


def context(driver: Any, batch: ForwardBatch) -> StepContext:
    context: StepContext = driver.model.begin(batch, driver.cache)
    return context


def test_trap_8_an_entry_stands_at_its_first_token(make_driver: Any, engine: Any) -> None:
    """Positions 3..6 complete entries 1 and 2 of ratio 2: these begin at 2 and 4, where they are rotated."""
    driver = make_driver()
    sequence = driver.add(range(20))
    driver.step([(sequence, 3)])
    step = context(driver, driver.batch([(sequence, 4)]))
    index = step.entries(driver.cache.block_rows(engine.plan.layers[2].main), 2)
    assert index.tokens.tolist() == [0, 2]
    assert index.positions.tolist() == [2, 4]
    assert index.row.tolist() == [1, 2]
    assert index.block.tolist() == [sequence.table[0]] * 2


@pytest.mark.parametrize(("ratio", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [0, 1, 1, 2, 2])])
def test_trap_32_only_completed_entries_are_visible(
    ratio: int, expected: list[int], make_driver: Any, engine: Any
) -> None:
    """floor((p + 1) / ratio) of them: at ratio 2 the first token sees none."""
    driver = make_driver()
    step = context(driver, driver.batch([(driver.add(range(5)), 5)]))
    layer = next(layer for layer in engine.plan.layers if layer.ratio == ratio)
    assert step.entries(driver.cache.block_rows(layer.main), ratio).visible.tolist() == expected


def test_ring_places_are_written_once_and_hold_the_last_rows(make_driver: Any, engine: Any) -> None:
    """A chunk longer than the ring stores its last ``rows`` tokens, each in the place of its position."""
    driver = make_driver()
    long, short = driver.add(range(200)), driver.add(range(5))
    driver.step([(short, 2)])
    index = context(driver, driver.batch([(long, 200), (short, 3)])).ring(
        driver.cache.slot_rows(engine.plan.layers[0].swa), 128
    )
    places = list(zip(index.write_slot.tolist(), index.write_row.tolist(), strict=True))
    assert len(set(places)) == len(places)
    assert places == [(long.slot, p % 129) for p in range(71, 200)] + [(short.slot, p) for p in (2, 3, 4)]
    assert index.write_tokens.tolist() == [*range(71, 203)]


def test_trap_12_every_norm_has_the_configured_eps(
    make_drafting_driver: Any, drafting_engine: Any, helpers: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of attention, compressors, index keys, streams, Engrams, drafter and head; the usual 1e-20 hides another."""
    constants = {**drafting_engine.plan.constants, "rms_norm_eps": 0.25}
    plan = helpers.replace(drafting_engine.plan, constants=constants)
    driver = make_drafting_driver()
    driver.model = load_model(plan, helpers.kernel_table(helpers.tiles), checkpoint)
    seen: list[float] = []

    def recorded(x: torch.Tensor, eps: float) -> torch.Tensor:
        seen.append(eps)
        return (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    for module in (norm, hyper_connection, engram):
        monkeypatch.setattr(module, "inverse_rms", recorded)
    sequence = driver.add(range(5))
    driver.step([(sequence, 5)])
    # A layer has 4 norms and 2 sites of streams, a KV source 2 more, an Engram 2; drafter: input and 3 keys; the head.
    assert seen == [0.25] * (10 * 6 + 3 * 2 + 2 * 2 + 4 + 1)
    seen.clear()
    draft(driver, [sequence], [7])
    assert seen == [0.25] * (3 * 6 + 1)


def test_trap_14_bias_chooses_and_does_not_weigh(model: Any) -> None:
    ffn = model.layers[3].ffn
    u = torch.randn(9, 128, generator=torch.Generator().manual_seed(0))
    chosen, weights = ffn.route(u)
    scores = torch.nn.functional.softplus(u @ ffn.gate.decode().t()).sqrt()
    torch.testing.assert_close(weights.sum(1), torch.full((9,), 1.5))
    picked = scores.gather(1, chosen)
    torch.testing.assert_close(weights, picked / picked.sum(1, keepdim=True) * 1.5)
    assert (chosen.sort(1).values != scores.topk(3).indices.sort(1).values).any(), "the bias must matter here"


def test_trap_30_index_keys_are_per_owner(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    """The released decode code scores against another layer's keys on every second step; this engine does not."""
    driver = make_driver()
    sequence = driver.add(oracle["p300_ids"])
    first = int(driver.prefill(sequence)[-1].argmax())
    tokens = driver.greedy([sequence], [first], 12)[0]
    assert tokens == oracle["p300_greedy"][:12].tolist()
    assert tokens != oracle["p300_greedy_stale_index_keys"][:12].tolist()


def test_trap_31_selections_end_with_the_step(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    first, second = driver.add(oracle["p129_ids"]), driver.add(oracle["p3_ids"])
    driver.prefill(first)
    step = context(driver, driver.batch([(second, 3)]))
    assert step.selections == {}
    assert step.candidates is None
    sharing = driver.model.layers[3]
    with pytest.raises(KeyError):
        sharing(torch.zeros(3, 4, 128), torch.ones(3, 4), step)


def test_trap_45_padding_tokens_have_candidates_too(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    """A step has as many tokens as its graph, more than were scheduled; none of its buffers is smaller."""
    driver = make_driver()
    sequence = driver.add(oracle["p129_ids"])
    driver.prefill(sequence)
    sequence.ids += [5]
    step = context(driver, driver.batch([(sequence, 1)], padding=[3, 3]))
    source = driver.model.layers[6].attention
    with torch.inference_mode():
        out = source(torch.randn(7, 128, generator=torch.Generator().manual_seed(0)), step)
    assert step.candidates is not None
    assert step.candidates.shape == (7, 130)
    assert step.selections[6].entries.shape[0] == out.shape[0] == 7
    assert out.isfinite().all()


def test_a_row_gives_the_same_alone_and_beside_others(make_driver: Any, oracle: Mapping[str, Any]) -> None:
    driver = make_driver()
    rows = [driver.add(oracle[f"p{n}_ids"]) for n in (300, 1, 129, 2)]
    logits = driver.step([(s, len(s.ids)) for s in rows]).numpy()
    start = 0
    for length in (300, 1, 129, 2):
        np.testing.assert_allclose(logits[start : start + length], oracle[f"p{length}_logits"], rtol=0, atol=1e-4)
        start += length


@pytest.mark.parametrize("change", ["policy", "constant"])
def test_what_is_not_built_is_refused(change: str, engine: Any, helpers: Any, checkpoint: Any) -> None:
    plan = engine.plan
    if change == "policy":
        plan, expected = helpers.replace(plan, policy="fp64"), r"DI346.*'fp64'"
    else:
        constants = {k: v for k, v in plan.constants.items() if k != "hc_eps"}
        plan, expected = helpers.replace(plan, constants=constants), "DI343.*hc_eps.*absent"
    with pytest.raises(InputError, match=expected):
        load_model(plan, helpers.kernel_table(helpers.tiles), checkpoint)


def test_rows_that_do_not_cover_the_tokens_are_refused() -> None:
    class Step:
        input_ids = positions = row_of_token = np.zeros(3, np.int32)
        q_len = k_len = prefill_len = slot = np.ones(2, np.int32)
        block_table = history = np.zeros((2, 3), np.int32)

    with pytest.raises(ValueError, match="2 tokens, the step 3"):
        ForwardBatch.from_step(Step(), torch.device("cpu"))
