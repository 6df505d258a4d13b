"""Silent wrong results of reading a checkpoint, by their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FIRST, Stored, copy_checkpoint, edit_index, edit_shard, plan_of, preset_config, read_shard
from recorder import Recorder
from shipped import shipped_plan

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.stored import ExpertStack, Matrix
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights import Weights, load_weights
from deepinfer_gen.runtime.weights_names import demand

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    return plan_of(tmp_path_factory.mktemp("plan"), nextn=5)


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    return copy_checkpoint(checkpoint, tmp_path / "checkpoint")


def load(plan: ModelPlan, folder: Path) -> Weights:
    return load_weights(plan, Constants.of(plan), folder)


def refused(plan: ModelPlan, folder: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(plan, folder)
    return [d.as_text() for d in caught.value.diagnostics]


def released() -> dict[str, TensorSpec]:
    plan = model_plan(shipped_plan("v41-flash-normal-ep8"))
    return demand(plan, Constants.of(plan), 0, 8).all


def layers_with(part: str) -> list[int]:
    """Backbone layers of the released checkpoint that have a tensor of this name."""
    return [int(name.split(".")[1]) for name in released() if name.startswith("layers.") and name.endswith(part)]


def test_trap_4_layers_share_compressors_and_ratio_1_keeps_every_token() -> None:
    """38 layers have a ratio, four a compressor; the last twenty have ratio 1, which is a cache in full length."""
    plan = model_plan(shipped_plan("v41-flash-normal-ep8"))
    assert layers_with("compressor.wkv.weight") == [2, 8, 14, 20]
    assert [layer.ratio for layer in plan.layers] == [0] * 2 + [2] * 18 + [1] * 20
    late = plan.layers[20:]
    assert {layer.kv_source for layer in late} == {20}
    assert {layer.main and layer.main.rows for layer in late} == {128}, "a row for each token of a block"
    assert {layer.main and layer.main.rows for layer in plan.layers[2:20]} == {64}


def test_trap_5_only_ratio_2_pools_and_pairs_do_not_overlap(model: Any, make_driver: Any) -> None:
    """Three gates for four compressors, no position embedding of group members, groups of two tokens each."""
    assert layers_with("compressor.wgate.weight") == [2, 8, 14]
    parts = {name.split(".compressor.")[1] for name in released() if ".compressor." in name}
    assert parts == {"wkv.weight", "wgate.weight", "norm.weight"}
    compressors = {layer.index: layer.attention.compressor for layer in model.layers}
    assert {i: c.wgate is not None for i, c in compressors.items() if c} == {2: True, 4: True, 6: False}

    driver = make_driver()
    step = model.begin(driver.batch([(driver.add(range(6)), 6)]), driver.cache)
    main = driver.cache.block_rows(model.plan.layers[2].main)
    recorder = Recorder(model.operators)
    module = compressors[2]
    module.operators = recorder
    with torch.inference_mode():
        module(torch.randn(6, 128, generator=torch.Generator().manual_seed(0)), main, step)
    module.operators = model.operators
    (((_, members), _),) = recorder.calls["pool_members"]
    first = members[0, 0]
    assert (members - first).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_trap_23_scales_of_another_tile_are_refused(plan: ModelPlan, folder: Path) -> None:
    """Tiles of 128 where 32 are expected would rescale every weight without a word."""
    edit_shard(folder, FIRST, lambda t: t.update({"layers.0.attn.wq_b.scale": Stored("F8_E8M0", [2, 1], bytes(2))}))
    assert "'layers.0.attn.wq_b.scale' has shape [2, 1], expected F8_E8M0 [8, 2]" in refused(plan, folder)[0]


def test_trap_23_the_tile_is_that_of_the_config(tmp_path: Path) -> None:
    config = preset_config("tiny-v41")
    config["quantization_config"]["weight_block_size"] = [128, 128]
    plan = plan_of(tmp_path, config)
    # wq_b is [256, 64]: two tiles of 128 rows, and one that holds all columns.
    assert demand(plan, Constants.of(plan)).all["layers.0.attn.wq_b.scale"] == TensorSpec("F8_E8M0", (2, 1))


def test_trap_23_scale_bytes_are_exponents(plan: ModelPlan, folder: Path) -> None:
    """A byte of 130 means 8: not 130, and not -0.0039, which the same byte is in e4m3."""
    name = "layers.0.attn.wkv"
    ones, scales = (
        Stored("F8_E4M3", [64, 128], b"\x38" * 64 * 128),
        Stored("F8_E8M0", [2, 4], bytes([127, 130, 120] + [128] * 5)),
    )
    edit_shard(folder, FIRST, lambda t: t.update({f"{name}.weight": ones, f"{name}.scale": scales}))
    weights = load(plan, folder)
    assert weights.stored(f"{name}.scale").dtype == torch.uint8
    assert weights.stored(f"{name}.scale")[0].tolist() == [127, 130, 120, 128]
    decoded = Matrix(weights, name).decode()
    assert [float(decoded[0, column]) for column in (0, 31, 32, 64, 96)] == [1.0, 1.0, 8.0, 2.0**-7, 2.0]
    assert float(decoded[32, 0]) == 2.0


def test_trap_23_scales_as_floats_are_refused(plan: ModelPlan, folder: Path) -> None:
    edit_shard(folder, FIRST, lambda t: t.update({"layers.0.attn.wkv.scale": Stored("F32", [2, 4], bytes(32))}))
    assert "'layers.0.attn.wkv.scale' has type F32, expected F8_E8M0 [2, 4]" in refused(plan, folder)[0]


def test_trap_24_a_packed_byte_is_two_columns_the_even_one_low(plan: ModelPlan, checkpoint: Path) -> None:
    """w1 is [64, 128] in 64 bytes a row, 32 columns a scale; a reader of 8-bit floats would see 64 columns."""
    name = "layers.5.ffn.experts.11.w1"
    (shard,) = (s for s in map(read_shard, checkpoint.glob("*.safetensors")) if f"{name}.weight" in s)
    packed, scales = shard[f"{name}.weight"].data, shard[f"{name}.scale"].data
    weights = load(plan, checkpoint)
    assert weights.stored(f"{name}.weight").shape == (64, 64)
    decoded = ExpertStack(weights, [name.removesuffix(".w1")], ["w1"]).decode(0)
    assert decoded.shape == (64, 128)
    for row, column in ((0, 0), (0, 1), (0, 31), (0, 32), (7, 126), (7, 127), (63, 64), (63, 95)):
        byte = packed[row * 64 + column // 2]
        code = byte >> 4 if column % 2 else byte & 15
        value = (-1.0 if code & 8 else 1.0) * E2M1[code & 7]
        assert float(decoded[row, column]) == value * 2.0 ** (scales[row * 4 + column // 32] - 127)
    low, high = decoded[0, 0::2], decoded[0, 1::2]
    assert not torch.equal(low, high), "the two columns of a byte must differ somewhere, or their order shows nowhere"


def test_trap_24_experts_of_eight_bit_floats_are_refused(plan: ModelPlan, folder: Path) -> None:
    expert = Stored("F8_E4M3", [64, 128], bytes(64 * 128))
    edit_shard(folder, FIRST, lambda t: t.update({"layers.0.ffn.experts.3.w1.weight": expert}))
    assert "'layers.0.ffn.experts.3.w1.weight' has shape [64, 128], expected I8 [64, 64]" in refused(plan, folder)[0]


def test_trap_25_eight_bit_floats_are_of_the_fn_variant(plan: ModelPlan, folder: Path) -> None:
    """0x38 is 1 and not 0.5, 0x80 is -0 and not NaN; the scale 127 is 1."""
    name, codes = "layers.0.attn.wkv", bytes([0x38, 0x80, 0x7E, 0xB8]) * 16 * 128
    weight, scale = Stored("F8_E4M3", [64, 128], codes), Stored("F8_E8M0", [2, 4], b"\x7f" * 8)
    edit_shard(folder, FIRST, lambda t: t.update({f"{name}.weight": weight, f"{name}.scale": scale}))
    decoded = Matrix(load(plan, folder), name).decode()[0, :4]
    assert decoded.tolist() == [1.0, 0.0, 448.0, -1.0]
    assert decoded[1].signbit()


def test_trap_25_weights_of_the_fnuz_variant_are_refused(plan: ModelPlan, folder: Path) -> None:
    name = "layers.0.attn.wkv.weight"
    edit_shard(folder, FIRST, lambda t: t.update({name: Stored("F8_E4M3FNUZ", [64, 128], bytes(64 * 128))}))
    assert f"'{name}' has type F8_E4M3FNUZ, expected F8_E4M3 [64, 128]" in refused(plan, folder)[0]


def test_trap_27_no_rule_rewrites_a_name(plan: ModelPlan, folder: Path) -> None:
    """A rule for the experts' w1 would catch this head too; the released names are the only ones there are."""
    embed, renamed = "mtp.2.markov_head.embed.weight", "mtp.2.markov_w1.weight"

    def rename(tensors: dict[str, Stored]) -> None:
        tensors[renamed] = tensors.pop(embed)

    edit_shard(folder, FIRST, rename)
    edit_index(folder, lambda m: m.update({renamed: m.pop(embed)}))
    missing, extra = refused(plan, folder)
    assert f"DI354]: tensor '{embed}' is missing: expected BF16 [512, 32], the index does not list it" in missing
    assert f"DI355]: tensor '{renamed}' BF16 [512, 32] is not part of the engine's model" in extra


def test_trap_27_only_routed_experts_are_divided_among_ranks(tmp_path: Path) -> None:
    """Shared experts have the same w1, w2 and w3, and the draft heads end the same way."""
    plan = plan_of(tmp_path, ep=4, nextn=5)
    parts = demand(plan, Constants.of(plan), 3, 4)
    assert parts.elsewhere
    assert all(".ffn.experts." in name for name in parts.elsewhere)
    for name in (
        "layers.9.ffn.shared_experts.w1.weight",
        "mtp.0.ffn.shared_experts.w3.scale",
        "mtp.2.markov_head.head.weight",
    ):
        assert name in parts.held


def test_trap_28_heads_of_the_draft_layers() -> None:
    """A projection on the first, norm, Markov and confidence heads on the last; embedding and LM head are shared."""
    tensors = released()
    common = {name.removeprefix("layers.0.") for name in tensors if name.startswith("layers.0.")}
    own: dict[str, Any] = {}
    for index in range(3):
        names = {n.removeprefix(f"mtp.{index}.") for n in tensors if n.startswith(f"mtp.{index}.")}
        own[index] = {n: tensors[f"mtp.{index}.{n}"] for n in names - common}
    assert own == {
        0: {
            "main_proj.weight": TensorSpec("F8_E4M3", (5120, 15360)),
            "main_proj.scale": TensorSpec("F8_E8M0", (160, 480)),
            "main_norm.weight": TensorSpec("BF16", (5120,)),
        },
        1: {},
        2: {
            "norm.weight": TensorSpec("BF16", (5120,)),
            "markov_head.embed.weight": TensorSpec("BF16", (129280, 256)),
            "markov_head.head.weight": TensorSpec("BF16", (129280, 256)),
            "confidence_head.proj.weight": TensorSpec("BF16", (1, 5376)),
        },
    }
    assert not any(
        name.endswith(("embed.weight", "head.weight")) for name in tensors if name.startswith(("mtp.0", "mtp.1"))
    )


def test_trap_28_a_head_on_another_draft_layer_is_refused(plan: ModelPlan, folder: Path) -> None:
    name = "mtp.1.main_norm.weight"
    edit_shard(folder, FIRST, lambda t: t.update({name: Stored("BF16", [128], bytes(256))}))
    edit_index(folder, lambda m: m.update({name: FIRST}))
    assert f"DI355]: tensor '{name}' BF16 [128] is not part" in refused(plan, folder)[0]


def test_trap_29_the_output_projection_is_stored_by_groups(plan: ModelPlan, folder: Path) -> None:
    """8 blocks of [1024, 4096]: each reads the 8 heads x 512 of its group, not all 32,768 columns."""
    assert released()["layers.0.attn.wo_a.weight"] == TensorSpec("F8_E4M3", (8 * 1024, 8 * 512))
    assert released()["layers.0.attn.wo_a.scale"] == TensorSpec("F8_E8M0", (256, 128))
    # The tiny model: 2 blocks of [32, 128]; a plain projection of the same outputs would have 4 x 64 columns.
    plain = Stored("F8_E4M3", [64, 256], bytes(64 * 256))
    edit_shard(folder, FIRST, lambda t: t.update({"layers.0.attn.wo_a.weight": plain}))
    assert "'layers.0.attn.wo_a.weight' has shape [64, 256], expected F8_E4M3 [64, 128]" in refused(plan, folder)[0]
