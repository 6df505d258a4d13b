"""The tensors a config demands, against the packaged checkpoint and the released file's size."""

from __future__ import annotations

import json
import struct
from collections import defaultdict

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.tensors import demanded_tensors
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.weights_names import demand
from deepinfer_gen.specs.presets import presets


@pytest.fixture(scope="module")
def of_released(released):
    return list(demanded_tensors(released))


def vision_bytes():
    """bf16 bytes of the vision tower and aligner: what the released file holds beside the text model."""
    width, inner, hidden = 1024, 2816, 5120
    patch = 14 * 14 * 3 * width + width
    block = 2 * width + (3 * width * width + 3 * width) + (width * width + width) + 3 * width * inner
    aligner = 9 * width * hidden + hidden + hidden * hidden + hidden
    return 2 * (patch + 32 * block + width + aligner + 3 * hidden)


def test_released_checkpoint(of_released):
    """The released file has 96,085 tensors, 266 of them vision, and 510,286,023,000 bytes."""
    assert len({t.name for t in of_released}) == len(of_released) == 96_085 - 266
    assert sum(t.spec.nbytes for t in of_released) == 510_286_023_000 - vision_bytes()


def test_the_width_of_the_index_key_projection(of_released, released):
    """509,315,486,040 bytes, and why another count says 509,320,204,632.

    indexer.wk projects the compressor's latent, which is head_dim = 512 wide: [128, 512] in bf16 on the 4 KV sources.
    Taken as a projection of the hidden state, 5120 wide, it would be 4 x 128 x (5120 - 512) x 2 = 4,718,592 bytes more.
    The file decides: 510,286,023,000 bytes less the 970,536,960 of the 266 vision tensors leave the smaller number.
    """
    keys = [t for t in of_released if t.name.endswith("indexer.wk.weight")]
    assert [(t.name, t.spec.dtype, t.spec.shape) for t in keys] == [
        (f"layers.{layer}.attn.indexer.wk.weight", "BF16", (128, 512)) for layer in (2, 8, 14, 20)
    ]
    total = sum(t.spec.nbytes for t in of_released)
    assert total == 509_315_486_040
    wide = len(keys) * released.index_head_dim * (released.hidden_size - released.head_dim) * 2
    assert wide == 4 * 128 * (5120 - 512) * 2 == 4_718_592
    assert total + wide == 509_320_204_632
    assert total + vision_bytes() == 510_286_023_000
    assert vision_bytes() == 970_536_960
    assert (len(of_released), len(of_released) + 266) == (95_819, 96_085)


def test_the_memory_plan_counts_the_same_bytes(make, enlarged):
    """One rank that holds everything: 9,846,748,608 + 713,428,872 dense, 15,744 experts of 18,800,640, the tables."""
    changes = {"parallel.dp": 1, "parallel.ep": 1, "parallel.engram_placement": "replicated"}
    plan = derive(make(changes, hardware=enlarged("sm100", 10**12)))
    parts = [plan.integer(f"memory.weights_{part}_bytes") for part in ("dense", "experts", "engram")]
    assert parts == [9_846_748_608 + 713_428_872, (40 * 384 + 3 * 128) * 18_800_640, 202_758_032_400]
    assert sum(parts) == plan["weights.checkpoint_bytes"] == 509_315_486_040


def test_tiny_equals_the_packaged_checkpoint(tiny):
    folder = presets()["tiny-v41"]
    stored = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with shard.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            stored[name] = (tensor["dtype"], tuple(tensor["shape"]), end - start)
    assert len(stored) == 1_542
    assert {t.name: (t.spec.dtype, t.spec.shape, t.spec.nbytes) for t in demanded_tensors(tiny)} == stored
    assert stored.keys() == json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].keys()


@pytest.mark.parametrize("nextn", [0, 5])
@pytest.mark.parametrize("preset", ["released", "tiny"])
def test_the_runtime_expects_the_same_tensors(make, request, preset, nextn):
    model = request.getfixturevalue(preset)
    changes = {"speculative.nextn": nextn, "speculative.max_backtracking_tokens": nextn + 1}
    plan = model_plan(derive(make(changes, model=model)))
    expected = demand(plan, Constants.of(plan), ep_size=8).all
    assert expected == {t.name: t.spec for t in demanded_tensors(model)}


@pytest.mark.parametrize("preset", ["released", "tiny"])
def test_formulas_sum_the_same_tensors(make, request, preset):
    model = request.getfixturevalue(preset)
    plan = derive(make(model=model))
    groups: defaultdict[str, int] = defaultdict(int)
    for tensor in demanded_tensors(model):
        groups[tensor.group] += tensor.spec.nbytes
    expert = plan.integer("weights.expert.bytes")
    assert groups == {
        "dense": plan["weights.dense_bytes"],
        "experts": model.num_hidden_layers * model.n_routed_experts * expert,
        "engram": plan["weights.engram_bytes"],
        "draft_dense": plan["weights.draft_dense_bytes"],
        "draft_experts": model.num_nextn_predict_layers * model.dspark_n_routed_experts * expert,
    }
    assert sum(groups.values()) == plan["weights.checkpoint_bytes"]


def test_counts_of_the_released_parts(of_released):
    assert sum(t.name.startswith("mtp.") for t in of_released) == 3 * 30 + 3 * 128 * 6 + 7
    assert sum(t.name.startswith("layers.") and ".ffn.experts." in t.name for t in of_released) == 40 * 384 * 6
    assert sum("." not in t.name.removesuffix(".weight") for t in of_released) == 3
