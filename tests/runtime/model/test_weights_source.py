"""Tensors as stored: owned copies of the mapped files, stacks, and shapes without a file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import FIRST, THIRD, copy_checkpoint, plan_of, preset_config, read_shard, split_shard, write_random

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights import MetaWeights, TensorSource, Weights, load_weights
from deepinfer_gen.runtime.weights_names import demand

WIDTHS = {torch.uint8: 1, torch.bfloat16: 2, torch.float32: 4}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    """The tiny model with its draft layers, on one rank."""
    return plan_of(tmp_path_factory.mktemp("plan"), nextn=5)


@pytest.fixture
def weights(plan: ModelPlan, checkpoint: Path) -> Weights:
    return load_weights(plan, Constants.of(plan), checkpoint)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def in_files(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a checkpoint, read without the code under test."""
    shards = [read_shard(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: (t.dtype, t.shape, t.data) for shard in shards for name, t in shard.items()}


def test_every_tensor_is_what_the_file_holds(weights: Weights, checkpoint: Path) -> None:
    found = in_files(checkpoint)
    assert weights.report.loaded == len(found) == 1542
    for name, (dtype, shape, data) in found.items():
        tensor = weights.stored(name)
        assert weights.spec(name) == TensorSpec(dtype, tuple(shape))
        assert tensor.shape == tuple(shape)
        assert tensor.element_size() * tensor.numel() == len(data)
        assert WIDTHS[tensor.dtype] == {"BF16": 2, "F32": 4}.get(dtype, 1)
        assert raw(tensor) == data
    assert weights.read_bytes == weights.report.loaded_bytes == 5_982_778


def test_a_tensor_is_owned_by_who_asked(weights: Weights) -> None:
    first = weights.stored("norm.weight")
    before = first.clone()
    first.zero_()
    assert torch.equal(weights.stored("norm.weight"), before)
    assert not torch.equal(first, before)


def test_a_stack_is_the_tensors_in_order(weights: Weights) -> None:
    names = [f"layers.3.ffn.experts.{e}.{w}.weight" for e in (5, 2, 9) for w in ("w1", "w3")]
    stacked = weights.stack(names)
    assert (stacked.dtype, stacked.shape) == (torch.uint8, (6, 64, 64))
    for name, tensor in zip(names, stacked, strict=True):
        assert torch.equal(tensor, weights.stored(name))
    assert weights.stack(["norm.weight"]).shape == (1, 128)


def test_what_differs_cannot_be_stacked(weights: Weights) -> None:
    with pytest.raises(ValueError, match="one type and shape"):
        weights.stack(["layers.0.ffn.experts.0.w1.weight", "layers.0.ffn.experts.0.w2.weight"])
    with pytest.raises(ValueError, match="one type and shape"):
        weights.stack([])


def test_meta_tensors_have_the_same_shapes(plan: ModelPlan, weights: Weights) -> None:
    meta = MetaWeights(plan, Constants.of(plan))
    sources: tuple[TensorSource, ...] = (meta, weights)
    for name in ("embed.weight", "layers.0.hc_attn_fn", "mtp.2.ffn.experts.7.w2.scale", "layers.1.engram.embed.weight"):
        empty, real = (source.stored(name) for source in sources)
        assert empty.device.type == "meta"
        assert (empty.dtype, empty.shape) == (real.dtype, real.shape)
    names = [f"layers.0.ffn.experts.{e}.w2.scale" for e in range(4)]
    assert meta.stack(names).shape == weights.stack(names).shape
    assert meta.report == replace(weights.report, shards=0)


def test_a_shard_that_shrinks_after_the_check_is_an_error(plan: ModelPlan, checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint")
    weights = load_weights(plan, Constants.of(plan), folder)
    size = (folder / FIRST).stat().st_size
    os.truncate(folder / FIRST, 8192)
    with pytest.raises(
        InputError, match=f"{FIRST}: error.DI401.*had {size} bytes when it was checked and has 8192 now"
    ):
        weights.stored("embed.weight")


def test_a_file_that_takes_the_shards_name_is_not_read(plan: ModelPlan, checkpoint: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint")
    weights = load_weights(plan, Constants.of(plan), folder)
    header, data = split_shard(folder / FIRST)
    (tmp_path / "other").write_bytes(bytes(len(data)))
    (tmp_path / "other").replace(folder / FIRST)
    start, stop = header["embed.weight"]["data_offsets"]
    assert raw(weights.stored("embed.weight")) == data[start:stop]


FEW_PAGES = 1 << 14
"""Bytes that may stay mapped."""


def resident(path: Path) -> int:
    """Bytes of a file that are mapped into this process and in memory."""
    blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    sizes = [re.search(r"^Rss:\s+(\d+) kB", block, re.M) for block in blocks if str(path) in block]
    assert sizes, f"{path} is not mapped"
    return sum(int(size[1]) << 10 for size in sizes if size)


def test_mapped_pages_are_given_back(tmp_path: Path) -> None:
    config = preset_config("tiny-v41")
    config["text_config"]["vocab_size"] = 1 << 15  # two tensors of 8 MiB
    plan = plan_of(tmp_path, config)
    write_random(tmp_path, demand(plan, Constants.of(plan)).all, shards=1)
    (shard,) = tmp_path.glob("*.safetensors")
    weights = load_weights(plan, Constants.of(plan), tmp_path)
    for name in ("embed.weight", "head.weight"):
        weights.stored(name)
    assert weights.read_bytes == 2 << 23
    assert resident(shard) <= FEW_PAGES


def test_mapped_pages_of_small_tensors_are_given_back(plan: ModelPlan, checkpoint: Path, tmp_path: Path) -> None:
    """A page fault maps neighbours too, so that many small tensors would leave the whole file mapped."""
    folder = copy_checkpoint(checkpoint, tmp_path / "checkpoint")
    weights = load_weights(plan, Constants.of(plan), folder)
    for shard in folder.glob("*.safetensors"):
        for name in read_shard(shard):
            weights.stored(name)
        assert resident(shard) <= FEW_PAGES


TILES = [(32, 32), (128, 128), (16, 48), (64, 32), (1, 128), (7, 5)]


@pytest.mark.parametrize("tile", TILES)
def test_weight_tiles_of_any_sides(tile: tuple[int, int], tmp_path: Path) -> None:
    """Scales by ceil division, and each weight under the scale of its tile."""
    config = preset_config("tiny-v41")
    config["quantization_config"]["weight_block_size"] = list(tile)
    plan = plan_of(tmp_path, config)
    constants = Constants.of(plan)
    write_random(tmp_path, demand(plan, constants).all)
    weights = load_weights(plan, constants, tmp_path)
    for name, rows, columns in (("layers.0.attn.wq_b", 256, 64), ("layers.1.engram.wkv", 640, 192)):
        grid = (rows + tile[0] - 1) // tile[0], (columns + tile[1] - 1) // tile[1]
        assert weights.spec(f"{name}.scale") == TensorSpec("F8_E8M0", grid)
        stored, scale = weights.stored(f"{name}.weight"), weights.stored(f"{name}.scale")
        decoded = Matrix(weights, name).decode()
        values = stored.view(torch.float8_e4m3fn).float()
        for row, column in (
            (0, 0),
            (rows - 1, columns - 1),
            (tile[0] - 1, min(tile[1], columns - 1)),
            (tile[0], 3),
            (131, 50),
        ):
            exponent = int(scale[row // tile[0], column // tile[1]]) - 127
            expected = values[row, column] * (float("nan") if exponent == 128 else 2.0**exponent)
            torch.testing.assert_close(decoded[row, column], expected, rtol=0, atol=0, equal_nan=True)
    # Experts and Engram rows keep their groups of 32 columns.
    assert weights.spec("layers.0.ffn.experts.0.w1.scale") == TensorSpec("F8_E8M0", (64, 4))
    assert weights.spec("layers.1.engram.embed.scale") == TensorSpec("F8_E8M0", (6126, 1))


def test_an_engine_of_another_tile_refuses_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    config = preset_config("tiny-v41")
    config["quantization_config"]["weight_block_size"] = [64, 64]
    plan = plan_of(tmp_path, config)
    with pytest.raises(InputError, match=r"layers.0.attn.wq_a.scale' has shape \[2, 4\], expected F8_E8M0 \[1, 2\]"):
        load_weights(plan, Constants.of(plan), checkpoint)


def test_the_third_shard_holds_the_engram_tables(checkpoint: Path) -> None:
    """The names above are spread over all shards, so that reading one file's tensors from another's map would show."""
    assert set(read_shard(checkpoint / THIRD)) == {
        f"layers.{layer}.engram.embed.{part}" for layer in (1, 4) for part in ("weight", "scale")
    }
