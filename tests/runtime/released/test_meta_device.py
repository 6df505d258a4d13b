"""The released model as modules on the meta device: every tensor is asked for once, and parameters add up by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.model import Model
from deepinfer_gen.runtime.model.numerics import NUMERICS
from deepinfer_gen.runtime.model.stored import ExpertStack
from deepinfer_gen.runtime.plan_types import KernelConfig, ModelPlan
from deepinfer_gen.runtime.weights import MetaWeights
from deepinfer_gen.runtime.weights_names import demand

# By hand, from the released shapes: a layer's matrices, then its vectors.
ATTENTION = 1280 * 5120 + 32768 * 1280 + 512 * 5120 + 8192 * 4096 + 5120 * 8192
VECTORS = 1280 + 512 + 64 + 2 * 5120  # q_norm, kv_norm, sink, attn_norm and ffn_norm
HYPER = 2 * (24 * 20480 + 24 + 3)
EXPERT = 3 * 2304 * 5120
LAYER = ATTENTION + VECTORS + HYPER + EXPERT  # with the shared expert
GATE = 384 * 5120 + 384
SOURCE = 512 * 5120 + 512 + 128 * 512 + 128
INDEXER = 4096 * 1280 + 32 * 5120
ENGRAM = 25600 * 6144 + 2 * 4 * 5120
GLOBALS = 2 * 129280 * 5120 + 5120
BACKBONE = 40 * (LAYER + GATE + 384 * EXPERT) + 4 * SOURCE + 3 * 512 * 5120 + 8 * INDEXER + 2 * ENGRAM + GLOBALS
TABLES = (384_006_168 + 384_016_682) * 256
# The bias of image rows is no part of the text model: a checkpoint holds it, no module asks for it.
IMAGE_BIAS = 40 * 384 + 3 * 128


class Recorded(MetaWeights):
    """``read`` lists every name that was asked for, ``specs`` all that the checkpoint has."""

    def __init__(self, plan: ModelPlan, constants: Constants) -> None:
        super().__init__(plan, constants)
        self.specs = demand(plan, constants).all
        self.read: list[str] = []

    def stored(self, name: str) -> Tensor:
        self.read.append(name)
        return super().stored(name)

    def stack(self, names: Sequence[str]) -> Tensor:
        self.read += names
        return super().stack(names)


@dataclass(frozen=True)
class Built:
    model: Model
    source: Recorded


@pytest.fixture(scope="module")
def built(decode_engine: Any) -> Built:
    """Backbone and drafter over tensors without memory."""
    # One rank holds all experts here.
    plan = replace(decode_engine.model, expert_starts=None)
    constants = Constants.of(plan)
    tiles = dict.fromkeys(("tokens", "rows", "queries", "entries"), 64)
    names = ("linear", "hyper_connection", "kv_scatter", "sparse_attention", "compressor", "index_scores",
             "moe_experts", "engram_gather")  # fmt: skip
    kernels = {name: KernelConfig(name, "reference", {}, tiles, 1, 1, 0, "") for name in names}
    operators = ReferenceOperators(kernels, NUMERICS[plan.policy])
    source = Recorded(plan, constants)
    return Built(Model(plan, source, operators, [0] * constants.vocab_size), source)


def weights(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Owner and logical elements of every tensor that came from the checkpoint; scales of numbers are none."""
    for owner, part in module.named_modules():
        for name, tensor in part.named_buffers(recurse=False):
            if tensor.device.type != "meta" or name == "table_scale":
                continue
            if name == "scale":
                # A hyper-connection holds its three scales spread over the rows of its coefficients.
                yield f"{owner}.{name}", 3 if hasattr(part, "fn") else 0
            else:
                packed = isinstance(part, ExpertStack) and name == "values"
                yield f"{owner}.{name}", tensor.numel() * (2 if packed else 1)


def count(module: nn.Module, *endings: str) -> int:
    return sum(elements for name, elements in weights(module) if name.endswith(endings or ("",)))


def test_parameters_of_the_backbone(decode_engine: Any, built: Built) -> None:
    """551.88 B without the n-gram tables, 196.6 B in them."""
    plan = {key: entry["value"] for key, entry in decode_engine.values.items()}
    tables = count(built.model, "engram.table")
    assert built.model.drafter is not None
    backbone = count(built.model) - count(built.model.drafter) - tables
    assert tables == TABLES == 196_613_849_600
    assert backbone == BACKBONE == 551_880_819_824
    assert plan["weights.dense_parameters"] + 40 * 384 * plan["weights.expert.parameters"] == BACKBONE + 40 * 384
    assert plan["weights.engram_rows"] * plan["model.config.engram_head_dim"] == TABLES


def test_parameters_of_the_drafter(built: Built) -> None:
    """Three layers of 128 experts; main_proj, two norms, the Markov head's two matrices and the confidence row."""
    assert built.model.drafter is not None
    heads = 5120 * 15360 + 2 * 5120 + 2 * 129280 * 256 + 5120 + 256
    assert count(built.model.drafter) == 3 * (LAYER + 128 * 5120 + 128 + 128 * EXPERT) + heads


def test_active_parameters_of_the_modules(decode_engine: Any, built: Built) -> None:
    """What a token is multiplied with, by the modules' own matrices and experts a token."""
    own = {
        *(f"attention.{name}.values" for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")),
        *(f"ffn.{name}.values" for name in ("gate", "shared_w1", "shared_w2", "shared_w3")),
    }
    routed = {"ffn.w13.values", "ffn.w2.values"}
    plan = {key: entry["value"] for key, entry in decode_engine.values.items()}
    active = extra = 0
    for layer in built.model.layers:
        found = dict(weights(layer))
        active += sum(found[name] for name in own)
        active += sum(found[name] for name in routed) * layer.ffn.per_token // len(layer.ffn.w13)
        extra += sum(n for name, n in found.items() if name.endswith((".values", ".fn")) and name not in own | routed)
    assert active == plan["active.backbone"] == 15_052_308_480
    assert active + extra == plan["active.backbone_all"] == 15_468_068_864
    assert active + extra + count(built.model.head) == plan["active.decode"] == 16_129_982_464


def test_every_tensor_is_asked_for_once(decode_engine: Any, built: Built) -> None:
    """And their bytes are the checkpoint's: 509,315,486,040 with draft layers, without vision."""
    specs, read = built.source.specs, built.source.read
    assert len(read) == len(set(read))
    assert {name.rpartition(".")[2] for name in specs.keys() - set(read)} == {"bias_vl"}
    held = sum(specs[name].nbytes for name in read)
    report = built.source.report
    assert (report.loaded, report.loaded_bytes, report.elsewhere) == (95_819, 509_315_486_040, 0)
    assert held + 4 * IMAGE_BIAS == 509_315_486_040
    assert decode_engine.values["weights.checkpoint_bytes"]["value"] == 509_315_486_040


def test_the_modules_hold_the_bytes_they_asked_for(built: Built) -> None:
    """Nothing is decoded or copied when modules are built; only the spread of three scales to 24 is added."""
    held = sum(buffer.nbytes for buffer in built.model.buffers() if buffer.device.type == "meta")
    specs = built.source.specs
    asked = sum(specs[name].nbytes for name in built.source.read)
    assert held == asked + 43 * 2 * (24 - 3) * 4
