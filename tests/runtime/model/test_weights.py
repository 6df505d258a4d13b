"""Reading a checkpoint: every fault is named with tensor, shard, expected and found, and nothing is half loaded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    FIRST,
    INDEX,
    SECOND,
    THIRD,
    Stored,
    copy_checkpoint,
    edit_header,
    edit_index,
    edit_shard,
)

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.block_formats import dequantize_mxfp4, dequantize_mxfp8, dequantize_tiles
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.number_formats import decode_ue8m0
from deepinfer_gen.runtime.weights import Weights, load_weights


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    return copy_checkpoint(checkpoint, tmp_path / "checkpoint")


@pytest.fixture
def load(engine: Any, folder: Path) -> Callable[[], Weights]:
    return lambda: load_weights(engine.plan, Constants.of(engine.plan), folder)


def faults(load: Callable[[], Weights]) -> list[str]:
    with pytest.raises(InputError) as caught:
        load()
    return [d.as_text() for d in caught.value.diagnostics]


def test_report_counts_everything(load: Callable[[], Weights]) -> None:
    report = load().report
    assert (report.shards, report.loaded, report.checked, report.skipped) == (3, 1301, 241, 0)
    assert report.loaded_bytes + report.checked_bytes == 5_982_778


def test_vision_tensors_are_skipped_and_counted(folder: Path, load: Callable[[], Weights]) -> None:
    names = ("vision.blocks.0.norm1.weight", "aligner.w1.bias", "image_start")

    edit_shard(folder, THIRD, lambda t: t.update(dict.fromkeys(names, Stored("BF16", [4], bytes(8)))))
    edit_index(folder, lambda m: m.update(dict.fromkeys(names, THIRD)))
    report = load().report
    assert (report.skipped, report.skipped_bytes, report.loaded) == (3, 24, 1301)


def test_missing_tensor(folder: Path, load: Callable[[], Weights]) -> None:
    edit_shard(folder, FIRST, lambda t: t.pop("layers.2.attn.compressor.wgate.weight"))
    (fault,) = faults(load)
    assert f"{FIRST}: error[DI354]" in fault
    assert "'layers.2.attn.compressor.wgate.weight' is missing: expected BF16 [64, 128]" in fault


def test_missing_draft_tensor_is_checked_though_not_loaded(folder: Path, load: Callable[[], Weights]) -> None:
    edit_shard(folder, FIRST, lambda t: t.pop("mtp.2.confidence_head.proj.weight"))
    assert "'mtp.2.confidence_head.proj.weight' is missing: expected BF16 [1, 160]" in faults(load)[0]


def test_extra_tensor(folder: Path, load: Callable[[], Weights]) -> None:
    extra = "layers.6.attn.compressor.wgate.weight"
    edit_shard(folder, SECOND, lambda t: t.update({extra: Stored("BF16", [4], bytes(8))}))
    edit_index(folder, lambda m: m.update({extra: SECOND}))
    (fault,) = faults(load)
    assert "DI355" in fault
    assert "'layers.6.attn.compressor.wgate.weight' BF16 [4] is not part of the engine's model" in fault


def test_tensor_that_the_index_does_not_list(folder: Path, load: Callable[[], Weights]) -> None:
    edit_index(folder, lambda m: m.pop("norm.weight"))
    assert any("'norm.weight'" in f and "the index does not list it" in f for f in faults(load))


def test_a_listed_tensor_that_no_shard_holds(folder: Path, load: Callable[[], Weights]) -> None:
    edit_index(folder, lambda m: m.update({"layers.0.bogus.weight": SECOND}))
    (fault,) = faults(load)
    assert "DI355" in fault
    assert f"'layers.0.bogus.weight' is listed in '{SECOND}', which does not hold it" in fault


def test_tensor_in_another_shard_than_listed(folder: Path, load: Callable[[], Weights]) -> None:
    edit_index(folder, lambda m: m.update({"embed.weight": SECOND}))
    assert f"'embed.weight' is listed in '{SECOND}' and lies in '{FIRST}'" in faults(load)[0]


def test_duplicate_across_shards(folder: Path, load: Callable[[], Weights]) -> None:
    edit_shard(folder, THIRD, lambda t: t.update({"embed.weight": Stored("BF16", [4], bytes(8))}))
    assert any("DI356" in f and FIRST in f and THIRD in f for f in faults(load))


def test_duplicate_inside_a_header(folder: Path, load: Callable[[], Weights]) -> None:
    raw = (folder / THIRD).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    entry = b'"x": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}, '
    text = b"{" + entry + entry + raw[9 : 8 + length]
    (folder / THIRD).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    assert f"{THIRD}: error[DI356]: the header names 'x' twice" in faults(load)[0]


def test_wrong_shape(folder: Path, load: Callable[[], Weights]) -> None:
    edit_header(folder, FIRST, lambda h: h["layers.0.attn.wq_a.weight"].update(shape=[128, 64]))
    (fault,) = faults(load)
    assert f"{FIRST}: error[DI357]" in fault
    assert "has shape [128, 64], expected F8_E4M3 [64, 128]" in fault


def test_wrong_type(folder: Path, load: Callable[[], Weights]) -> None:
    edit_header(folder, FIRST, lambda h: h["layers.0.ffn.experts.3.w1.weight"].update(dtype="F8_E4M3"))
    (fault,) = faults(load)
    assert "DI358" in fault
    assert "has type F8_E4M3, expected I8 [64, 64]" in fault


def test_absent_shard(folder: Path, load: Callable[[], Weights]) -> None:
    (folder / SECOND).unlink()
    assert f"DI352]: shard '{SECOND}' is absent" in faults(load)[0]


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""])
def test_index_that_leaves_the_folder(shard: str, folder: Path, load: Callable[[], Weights]) -> None:
    edit_index(folder, lambda m: m.update({"embed.weight": shard}))
    assert f"DI351]: tensor 'embed.weight' lies in {shard!r}" in faults(load)[0]


@pytest.mark.parametrize("keep", [4, 100, 200_000])
def test_truncated_shard(keep: int, folder: Path, load: Callable[[], Weights]) -> None:
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:keep])
    found = faults(load)
    assert all(f.startswith(f"{FIRST}: error[DI353]") and "truncated" in f for f in found[:20])
    assert len(found) in (1, 21)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"a": 1, "a": 2}'])
def test_unreadable_index(text: str, folder: Path, load: Callable[[], Weights]) -> None:
    (folder / INDEX).write_text(text)
    assert faults(load)[0].startswith(f"{INDEX}: error[DI350]: the index cannot be read")


def test_no_index(folder: Path, load: Callable[[], Weights]) -> None:
    (folder / INDEX).unlink()
    assert f"has no {INDEX}" in faults(load)[0]


def test_another_checkpoint_lists_the_first_faults_only(folder: Path, load: Callable[[], Weights]) -> None:
    edit_shard(folder, FIRST, lambda t: [t.pop(n) for n in list(t) if n.startswith("layers.0.ffn.experts")])
    found = faults(load)
    assert len(found) == 21
    assert "76 more faults" in found[-1]


def test_ue8m0_is_an_exponent() -> None:
    assert decode_ue8m0(torch.tensor([127, 0, 130], dtype=torch.uint8)).tolist() == [1.0, 2.0**-127, 8.0]
    assert decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()


def test_e4m3_tiles_end_at_the_edge() -> None:
    weight = torch.full((5, 6), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.tensor([[127, 128], [129, 130]], dtype=torch.uint8)
    decoded = dequantize_tiles(weight, scale, (4, 4))
    assert decoded[0].tolist() == [1, 1, 1, 1, 2, 2]
    assert decoded[4].tolist() == [4, 4, 4, 4, 8, 8]


def test_a_tile_may_be_larger_than_the_weight() -> None:
    """A config may state any tile; nothing of its size is allocated."""
    weight, scale = torch.full((2, 3), 0x38, dtype=torch.uint8), torch.tensor([[128]], dtype=torch.uint8)
    assert dequantize_tiles(weight, scale, (2**40, 2**40)).tolist() == [[2.0] * 3] * 2


def test_e4m3_rows() -> None:
    weight = torch.tensor([[0x38, 0xB8, 0x01, 0x7E]], dtype=torch.uint8)  # 1, -1, 2^-9, 448
    scale = torch.tensor([[128, 126]], dtype=torch.uint8)
    assert dequantize_mxfp8(weight, scale).tolist() == [[2.0, -2.0, 2.0**-10, 224.0]]


def test_trap_24_low_nibble_is_the_even_column() -> None:
    weight = torch.tensor([[0x21, 0xF7]], dtype=torch.uint8)
    scale = torch.tensor([[127, 128]], dtype=torch.uint8)
    assert dequantize_mxfp4(weight, scale).tolist() == [[0.5, 1.0, 12.0, -12.0]]
