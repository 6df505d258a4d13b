"""Silent wrong results of a drafter: each is a plausible reading that gives lower acceptance and no error."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_and_verify import draft, observed
from tiny_spec import TINY_SPEC

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime import cache_codec
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.draft_context import DraftContext, DraftRows
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.speculative import confidence
from deepinfer_gen.runtime.weights import load_weights
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

SPECS = Path(__file__).parents[3] / "specs"
HEADS, HEAD_DIM, ROPE, WINDOW, BLOCK = 4, 64, 16, 128, 5


def test_trap_22_draft_layers_route_by_the_text_bias(
    drafting_model: Model, drafting_engine: Any, checkpoint: Path
) -> None:
    weights = load_weights(drafting_engine.plan, Constants.of(drafting_engine.plan), checkpoint)
    u = torch.randn(40, 128, generator=torch.Generator().manual_seed(0))
    assert drafting_model.drafter is not None
    for index, layer in enumerate(drafting_model.drafter.layers):
        scores = torch.nn.functional.softplus(u @ layer.ffn.gate.decode().t()).sqrt()
        text, image = (weights.stored(f"mtp.{index}.ffn.gate.{bias}") for bias in ("bias", "bias_vl"))
        by_text, by_image = ((scores + bias).topk(2).indices.sort(1).values for bias in (text, image))
        assert (by_text != by_image).any(), "the biases must differ here"
        assert torch.equal(layer.ffn.route(u)[0].sort(1).values, by_text)


def test_trap_28_the_first_layer_projects_and_the_last_has_the_heads(
    drafting_model: Model, drafting_engine: Any, checkpoint: Path
) -> None:
    names = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]
    other = sorted({n for n in names if n.startswith("mtp.") and not n.startswith(_OF_EVERY_LAYER)})
    assert other == [
        "mtp.0.main_norm.weight",
        "mtp.0.main_proj.scale",
        "mtp.0.main_proj.weight",
        "mtp.2.confidence_head.proj.weight",
        "mtp.2.markov_head.embed.weight",
        "mtp.2.markov_head.head.weight",
        "mtp.2.norm.weight",
    ]
    weights = load_weights(drafting_engine.plan, Constants.of(drafting_engine.plan), checkpoint)
    drafter = drafting_model.drafter
    assert drafter is not None
    assert torch.equal(drafter.main_proj.values, weights.stored("mtp.0.main_proj.weight"))
    for found, name in (
        (drafter.main_norm, "mtp.0.main_norm"),
        (drafter.norm, "mtp.2.norm"),
        (drafter.markov_embed, "mtp.2.markov_head.embed"),
        (drafter.markov_head.values, "mtp.2.markov_head.head"),
        (drafter.confidence_head.values, "mtp.2.confidence_head.proj"),
    ):
        assert torch.equal(found, weights.stored(f"{name}.weight")), name
    assert not torch.equal(drafter.norm, drafting_model.norm), "the draft has a norm of its own before the shared head"
    assert (weights.report.loaded, weights.report.checked) == (1542, 0)


_OF_EVERY_LAYER = tuple(f"mtp.{i}.{part}" for i in range(3) for part in ("attn", "ffn", "hc_"))


def test_trap_34_rejected_drafts_leave_nothing(
    make_drafting_driver: Any,
    make_driver: Any,
    helpers: Any,
    drafting_engine: Any,
    checkpoint: Path,
    oracle: Mapping[str, Any],
) -> None:
    """Wrong drafts, then other tokens: drafts as if the wrong ones had never been. With draft rings of 130 rows some
    would have overwritten what the window still needs.
    """

    def drafted(driver: Any, wrong: int) -> torch.Tensor:
        sequence = driver.add(oracle["p300_ids"][:200])
        driver.prefill(sequence)
        logits = []
        for token in oracle["p300_ids"][200:204].tolist():
            if wrong:
                # One right token and drafts that are rejected; then the position after it is run again.
                sequence.ids += [token, *[77] * wrong]
                driver.step([(sequence, 1 + wrong)])
                sequence.done -= wrong
                del sequence.ids[sequence.done :]
            else:
                sequence.ids.append(token)
                driver.step([(sequence, 1)])
            found = draft(driver, [sequence], [9])
            logits += [found.logits.flatten(), found.confidence_logits.flatten()]
        return torch.cat(logits)

    fresh, rolled_back = drafted(make_drafting_driver(), 0), drafted(make_drafting_driver(), 5)
    torch.testing.assert_close(rolled_back, fresh, rtol=0, atol=1e-4)

    layout, plan = copy.deepcopy(drafting_engine.layout), drafting_engine.plan
    for region in layout["state"]["regions"]:
        if region["kind"] == "swa" and region["layer"] >= 10:
            region["rows"] = 130
    layers = tuple(helpers.replace(x, swa=helpers.replace(x.swa, rows=130)) for x in plan.draft.layers)
    short = helpers.replace(plan, draft=helpers.replace(plan.draft, layers=layers))
    model = load_model(short, helpers.kernel_table(helpers.tiles), checkpoint)
    engine = helpers.TinyEngine(short, layout)
    torch.testing.assert_close(drafted(make_driver(engine, model), 0), fresh, rtol=0, atol=1e-4)
    assert (drafted(make_driver(engine, model), 5) - fresh).abs().max() > 1e-2


def test_trap_35_every_query_sees_the_whole_block_and_one_window(
    drafting_model: Model, drafting_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft layer's attention against plain loops. Records round here: block rows are read as if they were stored."""
    monkeypatch.setitem(cache_codec.CODECS, "fp32", Rounded())
    cache = KVCache(drafting_engine.layout, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    cache.slots.view(torch.float32).copy_(torch.randn(cache.slots.view(torch.float32).shape, generator=generator))
    positions, slots = (3, 300), (4, 2)
    u = torch.randn(len(slots) * BLOCK, 128, generator=generator)
    drafter = drafting_model.drafter
    assert drafter is not None
    attention, region = drafter.layers[1].attention, drafting_engine.plan.draft.layers[1].swa
    rows = DraftRows(torch.tensor([7, 8]), torch.tensor(positions), torch.tensor(slots))
    with torch.inference_mode():
        found = attention(
            u, DraftContext(drafter.block(rows), cache, {"base": drafting_model.get_buffer("rotary_base")})
        )
    for row, (first, slot) in enumerate(zip(positions, slots, strict=True)):
        ring = cache.slot_rows(region).grid[slot]
        old = [ring[p % 134] for p in range(max(0, first - WINDOW), first)]
        block = u[row * BLOCK : (row + 1) * BLOCK]
        kv = normed(block @ attention.wkv.decode().t(), attention.kv_norm)
        keys = torch.stack([*old, *(Rounded().encode(rotated(k, first + i)) for i, k in enumerate(kv))])
        latent = normed(block @ attention.wq_a.decode().t(), attention.q_norm)
        queries = (latent @ attention.wq_b.decode().t()).view(BLOCK, HEADS, HEAD_DIM)
        for i in range(BLOCK):
            heads = []
            for head in range(HEADS):
                scores = keys @ rotated(queries[i, head], first + i) / math.sqrt(HEAD_DIM)
                weights = scores.exp() / (scores.exp().sum() + attention.sink[head].exp())
                heads.append(rotated(weights @ keys, -(first + i)))
            groups = torch.stack(heads).view(2, -1)
            latent_out = torch.einsum("gor,gr->go", attention.wo_a.decode().view(2, 32, 128), groups).flatten()
            expected = attention.wo_b.decode() @ latent_out
            torch.testing.assert_close(found[row * BLOCK + i], expected, rtol=1e-4, atol=1e-4)


class Rounded:
    """Records of float32 numbers rounded to bfloat16."""

    storage, data_bytes_per_scale = torch.float32, 0

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16).to(torch.float32)

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        return stored


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * weight.float()


def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
    """The last 16 channels turned pair by pair, theta 10000."""
    out = x.clone()
    for pair in range(ROPE // 2):
        at = HEAD_DIM - ROPE + 2 * pair
        angle = position * 10000 ** (-2 * pair / ROPE)
        a, b = float(x[at]), float(x[at + 1])
        out[at] = a * math.cos(angle) - b * math.sin(angle)
        out[at + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def test_trap_36_features_are_means_of_what_enters_the_target_layers(
    make_drafting_driver: Any, layer_oracle: Mapping[str, Any]
) -> None:
    """All rows, from the reference's streams after the layers before the targets 7, 8 and 9."""
    driver = make_drafting_driver()
    with observed(driver.model) as features:
        driver.prefill(driver.add(layer_oracle["ids"]))
    expected = np.concatenate([layer_oracle[f"stream_{layer}"].mean(1) for layer in (6, 7, 8)], 1)
    np.testing.assert_allclose(features[0].numpy(), expected, rtol=0, atol=1e-4)


def test_features_are_taken_after_engram(
    helpers: Any, drafting_engine: Any, checkpoint: Path, make_driver: Any, layer_oracle: Mapping[str, Any]
) -> None:
    """Layer 4 has Engram: as a target it gives the streams after layer 3 and Engram's part."""
    plan = drafting_engine.plan
    changed = helpers.replace(plan, draft=helpers.replace(plan.draft, target_layers=(4, 8, 9)))
    model = load_model(changed, helpers.kernel_table(helpers.tiles), checkpoint)
    driver = make_driver(drafting_engine, model)
    sequence = driver.add(layer_oracle["ids"])
    batch: ForwardBatch = driver.batch([(sequence, len(sequence.ids))])
    with torch.inference_mode():
        before = torch.from_numpy(layer_oracle["stream_3"])
        after = model.layers[4].engram(before, model.begin(batch, driver.cache).ngrams)
    with observed(model) as features:
        driver.prefill(sequence)
    assert (after - before).mean(1).abs().max() > 0.1
    torch.testing.assert_close(features[0][:, :128], after.mean(1), rtol=0, atol=1e-4)
    np.testing.assert_allclose(features[0][:, 128:256], layer_oracle["stream_7"].mean(1), rtol=0, atol=1e-4)


def test_trap_37_confidence_is_a_logit_of_the_raw_state(
    make_drafting_driver: Any, oracle: Mapping[str, Any], drafts: Mapping[str, Any]
) -> None:
    driver = make_drafting_driver()
    sequence = driver.add(oracle["p3_ids"])
    first = int(driver.prefill(sequence)[-1].argmax())
    states: list[torch.Tensor] = []
    handle = driver.model.drafter.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    found = draft(driver, [sequence], [first])
    handle.remove()
    drafter = driver.model.drafter
    previous = drafter.markov_embed[[first, *found.ids[0, :4].tolist()]].float()
    weights = drafter.confidence_head.decode()[0]
    raw = torch.cat([states[0][0], previous], 1) @ weights
    normalised = torch.cat([normed(states[0][0], drafter.norm), previous], 1) @ weights
    torch.testing.assert_close(found.confidence_logits[0], raw, rtol=0, atol=1e-5)
    assert (normalised - raw).abs().max() > 0.1
    logits = drafts["p3_draft_conf"]
    assert logits.max() > 1, "logits, not probabilities"
    once = [round(65535 / (1 + math.exp(-float(logit)))) for logit in logits]
    counted = confidence.of_logits(found.confidence_logits[0]).tolist()
    assert all(abs(a - b) <= 2 for a, b in zip(counted, once, strict=True))


@pytest.mark.parametrize("nextn", [6, 7])
def test_trap_38_more_drafts_than_the_block_are_refused(nextn: int, tmp_path: Path) -> None:
    path = tmp_path / "too-many.yaml"
    path.write_text(TINY_SPEC.read_text().replace("nextn: 0 ", f"nextn: {nextn} "))
    with pytest.raises(InputError, match=rf"DI041.*exceeds.*nextn = {nextn} .*dspark_block_size = 5"):
        resolve(load_spec(path))


def test_trap_39_draft_experts_have_their_own_geometry(drafting_model: Model) -> None:
    """8 experts of which 2 answer, beside a backbone of 16 and 3; in the released model 128 and 3 beside 384 and 6."""
    assert drafting_model.drafter is not None
    for layer in drafting_model.drafter.layers:
        chosen, weights = layer.ffn.route(torch.ones(4, 128))
        assert (len(layer.ffn.w13), len(layer.ffn.w2), tuple(chosen.shape)) == (8, 8, (4, 2))
        torch.testing.assert_close(weights.sum(1), torch.full((4,), 1.5))
    assert len(drafting_model.layers[0].ffn.w13) == 16
    released = model_plan(derive(resolve(load_spec(SPECS / "v41-flash-normal-ep8.yaml"))))
    assert released.draft is not None
    assert {(layer.experts, layer.experts_per_token) for layer in released.draft.layers} == {(128, 3)}
    assert {(layer.experts, layer.experts_per_token) for layer in released.layers} == {(384, 6)}
