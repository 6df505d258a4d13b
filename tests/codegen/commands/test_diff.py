"""diff: differences by meaning, and whether stored KV can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer_gen.codegen.sources import open_view
from deepinfer_gen.codegen.stored_kv import unreadable_because
from deepinfer_gen.specs.presets import presets

Cli = Callable[..., Any]
WriteSpec = Callable[..., str]


def test_comments_and_moved_lines_are_no_difference(cli: Cli, write_spec: WriteSpec) -> None:
    moved = write_spec(
        "moved.yaml", ("engine:", "# a comment\n\nengine:"), ("model: tiny-v41\n", "model: tiny-v41  # it\n")
    )
    result = cli("diff", write_spec(), moved)
    assert result.status == 0
    assert result.out == "case and case are equal.\nKV stored by case can be read by case.\n"


def test_a_folder_equals_its_spec(cli: Cli, write_spec: WriteSpec, folder: Path) -> None:
    assert cli("diff", folder, write_spec()).status == 0
    assert cli("diff", write_spec(), folder, "--json").data["different"] is False


SEQS = """\
Settings (2 changed)
  limits.max_num_seqs     16  →  20  sequences  +25.0 %
  schedule.prefill_burst   1  →   2  steps      +100.0 %

"""


def test_more_sequences(cli: Cli, write_spec: WriteSpec) -> None:
    """16 to 20 sequences: graphs close at 20, slots floor(24) + 1 = 25, blocks 20 x 33 + 1 = 661; no row moves."""
    result = cli("diff", write_spec(), write_spec("b.yaml", ("max_num_seqs: 16", "max_num_seqs: 20")))
    assert result.status == 1
    assert result.out.startswith(SEQS)
    for line in (
        "kv.num_blocks 529 → 661 blocks +25.0 %",
        "memory.block_kv_bytes 13,000,704 → 16,244,736 B +3.09 MiB +25.0 %",
        "state.num_slots 20 → 25 slots +25.0 %",
    ):
        assert line in [" ".join(text.split()) for text in result.out.splitlines()]
    assert "Graph sizes\n  + [20]\n" in result.out
    assert "Memory regions" not in result.out
    assert result.out.endswith("KV stored by case can be read by case.\n")


def test_moved_regions_are_listed(cli: Cli, write_spec: WriteSpec) -> None:
    data = cli("diff", write_spec(), write_spec("b.yaml", ("block_size: 32", "block_size: 64")), "--json").data
    # By hand: layer 2 holds 32 rows instead of 16, of 256 and 128 B.
    assert {"key": "block kv.2 bytes", "old": 6144, "new": 12288, "unit": "B"} in data["regions"]
    assert {"key": "block kv.4 offset", "old": 6144, "new": 12288, "unit": "B"} in data["regions"]
    assert all(not change["key"].startswith("state ") for change in data["regions"])
    assert data["stored_kv"] == {
        "readable": False,
        "reasons": ["block layout: a block holds 32 tokens, not 64"],
        "note": "",
    }


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        (
            "block_size: 32",
            "block_size: 32\n  row_layout: split",
            ["row format: kv.row_layout is interleaved, not split"],
        ),
        ("block_size: 32", "block_size: 32\n  store_grain: 64", ["grain: kv.store_grain is 128, not 64"]),
        (
            "nextn: 0",
            "nextn: 0\n  max_backtracking_tokens: 3",
            [
                "stored state: window rings of layers 0–5 are of 129 rows, not 131",
                "stored state: 198,144 B are stored, not 201,216",
            ],
        ),
        (
            "float32_unquantized",
            "float32",
            [
                "row format: kv.main_format is fp32, not nvfp4_g16",
                "row format: kv.index_format is fp32, not mxfp4_g32",
                "row format: kv.swa_format is fp32, not mxfp8_g32",
                "block layout: main rows of layers 2, 4, 6 are of 256 B, not 36",
                "block layout: index rows of layers 2, 4, 6 are of 128 B, not 17",
                "stored state: window rows of layers 0–5 are of 256 B, not 66",
                "stored state: 198,144 B are stored, not 51,168",
            ],
        ),
    ],
)
def test_reasons_why_kv_cannot_be_read(cli: Cli, write_spec: WriteSpec, old: str, new: str, reasons: list[str]) -> None:
    stored = cli("diff", write_spec(), write_spec("b.yaml", (old, new)), "--json").data["stored_kv"]
    assert stored["readable"] is False
    assert stored["reasons"] == reasons


def test_a_moved_region_is_a_reason(write_spec: WriteSpec) -> None:
    view = open_view(write_spec())
    moved = json.loads(json.dumps(view.layout))
    for region in moved["state"]["regions"][2:]:
        region["offset"] += 128
    moved["block"]["regions"][1]["index"]["offset"] += 32
    assert unreadable_because(view, replace(view, layout=moved)) == (
        "block layout: index rows of layer 4 start at 10,240, not 10,272",
        "stored state: window rings of layer 2 start at 66,048, not 66,176, and 3 more",
    )
    fewer = json.loads(json.dumps(view.layout))
    fewer["block"]["regions"][2]["ratio"] = 2
    del fewer["block"]["regions"][0], fewer["state"]["regions"][5]
    assert unreadable_because(view, replace(view, layout=fewer)) == (
        "sources: KV source layers are [2, 4, 6], not [4, 6]",
        "sources: layer 6 has one row per 1 tokens, not 2",
        "stored state: regions differ: swa.5",
    )


def test_moved_scales_are_a_reason(write_spec: WriteSpec) -> None:
    split = ("block_size: 32", "block_size: 32\n  row_layout: split")
    view = open_view(write_spec("split.yaml", ("float32_unquantized", "float32"), split))
    moved = json.loads(json.dumps(view.layout))
    moved["block"]["regions"][0]["main"]["scales"]["offset"] += 2
    moved["state"]["regions"][1]["scales"]["offset"] += 4
    # 16 rows of 32 bytes of data; a ring of 129 x 66 = 8,514 bytes padded to 8,528, then 129 x 64 bytes of data.
    assert unreadable_because(view, replace(view, layout=moved)) == (
        "block layout: main rows of layer 2 have their scales at 512, not 514",
        "stored state: window rings of layer 1 have their scales at 16,784, not 16,788",
    )


def test_another_model_is_a_reason_and_drafting_is_none(cli: Cli, write_spec: WriteSpec, tmp_path: Path) -> None:
    config = json.loads((presets()["tiny-v41"] / "config.json").read_text())
    config["text_config"]["rope_theta"] = 20000
    (tmp_path / "other.json").write_text(json.dumps(config))
    other = write_spec("other.yaml", ("model: tiny-v41", "model: other.json"))
    reasons = cli("diff", write_spec(), other, "--json").data["stored_kv"]["reasons"]
    assert len(reasons) == 1
    assert reasons[0].startswith("model: cache-relevant config ")
    assert reasons[0].endswith("; they differ in rope_theta")
    config["text_config"]["rope_theta"] = 10000
    config["text_config"]["dspark_noise_token_id"] = 5
    (tmp_path / "other.json").write_text(json.dumps(config))
    assert cli("diff", write_spec(), other, "--json").data["stored_kv"]["readable"] is True


def test_other_arithmetic_is_noted(cli: Cli) -> None:
    result = cli("diff", "v41-flash-normal-ep8", "v41-flash-normal-ep8-sm90")
    assert result.status == 1
    assert result.out.endswith(
        "KV stored by v41-flash-normal-ep8 can be read by v41-flash-normal-ep8-sm90;"
        " its rows were computed under numerics.policy released, not bf16.\n"
    )


def test_kernels_are_compared(cli: Cli) -> None:
    data = cli("diff", "v41-flash-normal-ep8", "v41-flash-normal-ep8-sm90", "--json").data
    assert {"key": "linear static.policy", "old": "released", "new": "bf16", "unit": ""} in data["kernels"]
    assert not any(change["key"].startswith("kernels.") for change in data["settings"] + data["derived"])


def test_bad_input(cli: Cli, tmp_path: Path) -> None:
    assert cli("diff", "tiny-cpu", tmp_path / "no.yaml").status == 2
    assert cli("diff", "tiny-cpu", tmp_path).status == 2
