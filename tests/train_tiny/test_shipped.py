"""What the shipped small code model must be: every kind of layer, small, strictly loadable, sparse at 1,000 tokens."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import INDEX, split_shard
from export import INDEX as EXPORTED_INDEX
from export import SHARD, read_config
from paged_run import PagedModel, compile_plan
from torch import Tensor

from deepinfer_gen.codegen.tensors import demanded_parameters, demanded_tensors
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.specs.presets import preset_folder

SHIPPED = preset_folder("tiny-v41-code")
TEXT = Path(__file__).parents[2] / "src" / "deepinfer_gen" / "formula.py"
TOKENS = 1000
MOST_BYTES = MOST_PARAMETERS = 12_000_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelPlan, PagedModel]:
    """The plan of an engine that drafts, and the checkpoint loaded for it: strictly, no tensor more or less."""
    folder = shutil.copytree(SHIPPED, tmp_path_factory.mktemp("shipped") / "copy")
    plan = compile_plan(folder, tokens=1024, block=32, numerics__policy="float32", speculative__nextn=5)
    return model_plan(plan), PagedModel(plan, folder)


@dataclass
class Pass:
    """One pass over the text: its logits, and by index source the entries chosen [T, S], those that its scores would
    choose among all visible ones, and the candidates that were published at the time.
    """

    ids: Tensor
    logits: Tensor
    chosen: dict[int, Tensor] = field(default_factory=dict)
    unfiltered: dict[int, Tensor] = field(default_factory=dict)
    candidates: dict[int, Tensor] = field(default_factory=dict)


@pytest.fixture(scope="module")
def passed(engine: tuple[ModelPlan, PagedModel]) -> Pass:
    plan, paged = engine
    ids = Tokenizer(SHIPPED).encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)[:TOKENS]
    found = Pass(torch.tensor(ids), torch.empty(0))
    hooks = []
    for layer, module in zip(plan.layers, paged.model.layers, strict=True):
        if not layer.is_index_source:
            continue

        def keep(indexer: Any, inputs: tuple[Any, ...], entries: Tensor, index: int = layer.index) -> None:
            step = inputs[-1]
            found.chosen[index] = entries
            if step.candidates is not None:
                found.candidates[index] = published = step.candidates
                step.candidates = torch.ones_like(published)
                found.unfiltered[index] = indexer.forward(*inputs)
                step.candidates = published

        hooks.append(module.attention.indexer.register_forward_hook(keep))
    with torch.inference_mode():
        found.logits = paged.logits(ids, [TOKENS])
    for hook in hooks:
        hook.remove()
    return found


def role(layer: LayerPlan) -> str:
    if not layer.ratio:
        return "window"
    if layer.is_kv_source:
        return "Full"
    return "Reindex" if layer.is_index_source else "Reuse"


def test_every_kind_of_layer(engine: tuple[ModelPlan, PagedModel]) -> None:
    """By the compiled plan: layers of ratio 0, 2 and 1, three sources of entries, an Engram on two layers."""
    plan, _ = engine
    kinds = Counter((layer.ratio, role(layer)) for layer in plan.layers)
    assert kinds == {
        (0, "window"): 1,
        (2, "Full"): 2,
        (2, "Reuse"): 2,
        (1, "Full"): 1,
        (1, "Reuse"): 2,
        (1, "Reindex"): 1,
    }
    assert {layer.candidate_role for layer in plan.layers} == {"none", "source", "consumer"}
    assert [layer.index for layer in plan.layers if layer.engram is not None] == [1, 3]
    assert plan.constants["sliding_window"] == 128
    assert plan.constants["hc_mult"] == 2
    assert all((layer.experts, layer.experts_per_token) == (8, 2) for layer in plan.layers)
    assert plan.draft is not None
    assert [(layer.ratio, layer.experts, layer.experts_per_token) for layer in plan.draft.layers] == [(0, 4, 2)] * 3


def test_every_kind_of_tensor() -> None:
    """In the file itself, in the released formats: FP8 in tiles of 32 × 32, experts in MXFP4, groups of 32."""
    header, _ = split_shard(SHIPPED / SHARD)
    stored = {name: (tensor["dtype"], tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
    assert stored["layers.0.attn.wq_a.weight"] == ("F8_E4M3", [128, 256])
    assert stored["layers.0.attn.wq_a.scale"] == ("F8_E8M0", [4, 8])
    assert stored["layers.8.ffn.experts.7.w1.weight"] == ("I8", [96, 128])
    assert stored["layers.8.ffn.experts.7.w1.scale"] == ("F8_E8M0", [96, 8])
    assert stored["layers.8.ffn.shared_experts.w1.weight"] == ("F8_E4M3", [96, 256])
    assert stored["layers.3.engram.embed.weight"][0] == "F8_E4M3"
    for place in ("attn", "ffn"):
        assert all(stored[f"layers.{layer}.hc_{place}_fn"] == ("F32", [8, 512]) for layer in range(9))
    assert stored["mtp.2.markov_head.embed.weight"] == ("BF16", [2048, 64])
    assert stored["mtp.2.confidence_head.proj.weight"][0] == "BF16"
    assert {name.split(".")[1] for name in stored if name.startswith("mtp.")} == {"0", "1", "2"}


def test_nothing_missing_and_nothing_more() -> None:
    header, data = split_shard(SHIPPED / SHARD)
    index = json.loads((SHIPPED / INDEX).read_text())["weight_map"]
    demanded = {t.name: (t.spec.dtype, list(t.spec.shape)) for t in demanded_tensors(read_config(SHIPPED))}
    header.pop("__metadata__", None)
    assert {name: (tensor["dtype"], tensor["shape"]) for name, tensor in header.items()} == demanded
    assert index == dict.fromkeys(demanded, SHARD)
    assert max(tensor["data_offsets"][1] for tensor in header.values()) == len(data)
    assert EXPORTED_INDEX == INDEX


def test_size() -> None:
    """12 MB on disk with all that lies beside the weights; 12 M parameters outside the tables of the Engrams."""
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= MOST_BYTES
    parameters = [p for p in demanded_parameters(read_config(SHIPPED)) if not p.name.endswith(".engram.embed")]
    assert sum(math.prod(parameter.shape) for parameter in parameters) <= MOST_PARAMETERS


def test_it_is_trained(passed: Pass) -> None:
    """A token of a source that it has not seen costs less than half of the 11 bits of one among 2,048."""
    nats = torch.nn.functional.cross_entropy(passed.logits[:-1], passed.ids[1:])
    assert float(nats) / math.log(2) < 11 / 2


def test_selections_drop_visible_entries(passed: Pass, engine: tuple[ModelPlan, PagedModel]) -> None:
    """The last token sees 500 or 1,000 entries and each source chooses 64 of them, not merely the newest."""
    plan, _ = engine
    for layer in plan.layers:
        if layer.is_index_source:
            chosen = passed.chosen[layer.index]
            visible = (torch.arange(TOKENS) + 1) // layer.ratio
            counts = (chosen >= 0).sum(1)
            assert torch.equal(counts, visible.clamp(max=64)), layer.index
            assert int((visible - counts).max()) == TOKENS // layer.ratio - 64
            sparse = visible > 64
            oldest_of_newest = (visible - 64)[sparse]
            older = (chosen[sparse] >= 0) & (chosen[sparse] < oldest_of_newest.unsqueeze(1))
            assert float(older.any(1).float().mean()) > 0.9, layer.index


def test_the_candidate_filter_restricts(passed: Pass) -> None:
    """Layer 7 would choose entries outside the 256 candidates of layer 5; with the filter it chooses others."""
    assert set(passed.candidates) == {5, 7}
    assert torch.equal(passed.unfiltered[5], passed.chosen[5]), "the source's own choice is not restricted"
    candidates, chosen, free = passed.candidates[7], passed.chosen[7], passed.unfiltered[7]
    assert int(candidates.sum(1).max()) == 256
    outside = (free >= 0) & ~candidates.gather(1, free.clamp(min=0))
    inside = (chosen < 0) | candidates.gather(1, chosen.clamp(min=0))
    assert bool(inside.all())
    refused = outside.any(1)
    assert not refused[:256].any(), "up to 256 visible entries all are candidates"
    assert float(refused[256:].float().mean()) > 0.5
    assert bool((free != chosen).any(1)[refused].all())
