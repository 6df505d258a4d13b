"""The layout of every generated folder equals a second, independent computation; each kind of fault is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .layout_recompute import check_layout

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(p.parent.name for p in (ROOT / "generated").glob("*/layout.json"))

RELEASED: dict[str, Any] = {
    "num_hidden_layers": 40,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "head_dim": 512,
    "index_head_dim": 128,
    "sliding_window": 128,
}


def released_layout(tokens: int) -> dict[str, Any]:
    """The released model's layout typed out: 288-byte main, 68-byte index, 528-byte window rows, nextn 5.

    Block 128: 64 x 288 = 18,432 and 64 x 68 = 4,352 make 22,784 for a ratio-2 source, 45,568 for the ratio-1 source.
    Block 32: 16 x 288 = 4,608 and 16 x 68 = 1,088 make 5,696 and 11,392; 3 x 5,696 + 11,392 = 28,480, padded by 64.
    """
    pair, size, padding = {128: (22_784, 113_920, 0), 32: (5_696, 28_544, 64)}[tokens]
    blocks = []
    for layer, offset in ((2, 0), (8, pair), (14, 2 * pair), (20, 3 * pair)):
        ratio = 1 if layer == 20 else 2
        rows = tokens // ratio
        main = {"format": "nvfp4_g16", "offset": offset, "rows": rows, "row_bytes": 288}
        index = {"format": "mxfp4_g32", "offset": offset + rows * 288, "rows": rows, "row_bytes": 68}
        blocks.append({"name": f"kv.{layer}", "layer": layer, "ratio": ratio, "offset": offset,
                       "bytes": pair * 2 // ratio, "padding": 0, "main": main, "index": index})  # fmt: skip
    states = [
        {"name": f"swa.{n}", "kind": "swa", "layer": n, "format": "mxfp8_g32", "offset": 70_752 * n, "bytes": 70_752,
         "padding": 0, "rows": 134, "row_bytes": 528, "stored": n < 20}
        for n in range(43)
    ]  # fmt: skip
    for layer, offset in ((2, 3_042_336), (8, 3_071_008), (14, 3_099_680)):
        states.append({"name": f"ca_state.{layer}", "kind": "ca_state", "layer": layer, "format": "fp32",
                       "offset": offset, "bytes": 28_672, "padding": 0, "rows": 7, "row_bytes": 4_096,
                       "stored": False})  # fmt: skip
    for layer in (2, 8, 14):
        states.append({"name": f"ica_state.{layer}", "kind": "ica_state", "layer": layer, "format": "fp32",
                       "offset": 3_128_352, "bytes": 0, "padding": 0, "rows": 7, "row_bytes": 0,
                       "stored": False})  # fmt: skip
    sharing = {2: range(3, 8), 8: range(9, 14), 14: range(15, 20), 20: range(21, 40)}
    return {
        "block": {"tokens": tokens, "bytes": size, "alignment": 128, "padding": padding, "count": 1000,
                  "row_layout": "interleaved", "regions": blocks,
                  "aliases": [{"layer": n, "of": s} for s, layers in sharing.items() for n in layers]},
        "state": {"slot_bytes": 3_128_352, "count": 154, "stored_bytes": 1_415_040, "dropped_bytes": 1_713_312,
                  "alignment": 16, "regions": states},
    }  # fmt: skip


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(layout: dict[str, Any]) -> None:
        place: Any = layout
        for step in path[:-1]:
            place = place[step]
        assert place[path[-1]] != to, "the mutation changes nothing"
        place[path[-1]] = to

    return change


def _swap_regions(layout: dict[str, Any]) -> None:
    regions = layout["state"]["regions"]
    regions[0]["layer"], regions[1]["layer"] = 1, 0


def _swap_main_and_index(layout: dict[str, Any]) -> None:
    region = layout["block"]["regions"][0]
    region["index"]["offset"], region["main"]["offset"] = 0, 64 * 68


MUTATIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "overlap in a slot": _set("state", "regions", 5, "offset", to=5 * 70_752 - 16),
    "overlap in a block": _set("block", "regions", 0, "index", "offset", to=18_432 - 32),
    "wrong offset of a ring": _set("state", "regions", 42, "offset", to=42 * 70_752 + 128),
    "wrong offset of a source": _set("block", "regions", 3, "offset", to=68_352 + 32),
    "wrong offset of an accumulator": _set("state", "regions", 43, "offset", to=3_042_336 + 16),
    "wrong padding of a block": _set("block", "padding", to=128),
    "wrong padding of a region": _set("block", "regions", 1, "padding", to=32),
    "wrong padding of a ring": _set("state", "regions", 7, "padding", to=16),
    "wrong alias": _set("block", "aliases", 5, "of", to=2),
    "missing alias": lambda layout: layout["block"]["aliases"].pop(),
    "alias named twice": lambda layout: layout["block"]["aliases"].append({"layer": 3, "of": 2}),
    "wrong main row bytes": _set("block", "regions", 2, "main", "row_bytes", to=272),
    "wrong index row bytes": _set("block", "regions", 2, "index", "row_bytes", to=64),
    "wrong window row bytes": _set("state", "regions", 3, "row_bytes", to=512),
    "wrong accumulator row bytes": _set("state", "regions", 44, "row_bytes", to=2_048),
    "wrong ring rows": _set("state", "regions", 9, "rows", to=133),
    "wrong accumulator rows": _set("state", "regions", 45, "rows", to=8),
    "wrong rows of a source": _set("block", "regions", 0, "main", "rows", to=128),
    "wrong ratio": _set("block", "regions", 3, "ratio", to=2),
    "wrong format": _set("state", "regions", 0, "format", to="bf16"),
    "stored beyond the cut": _set("state", "regions", 20, "stored", to=True),
    "not stored before the cut": _set("state", "regions", 19, "stored", to=False),
    "wrong stored bytes": _set("state", "stored_bytes", to=1_485_792),
    "wrong dropped bytes": _set("state", "dropped_bytes", to=1_713_313),
    "slot too long": _set("state", "slot_bytes", to=3_128_480),
    "slot too short": _set("state", "slot_bytes", to=3_128_336),
    "block too long": _set("block", "bytes", to=114_048),
    "state of index keys": _set("state", "regions", 46, "bytes", to=16),
    "rings in another order": _swap_regions,
    "index rows before main rows": _swap_main_and_index,
    "a region left out": lambda layout: layout["state"]["regions"].pop(30),
    "a source left out": lambda layout: layout["block"]["regions"].pop(1),
}


@pytest.mark.parametrize("tokens", [128, 32])
def test_the_released_layout_typed_by_hand_agrees(tokens: int) -> None:
    assert check_layout(released_layout(tokens), RELEASED) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_kind_of_fault_is_found(name: str) -> None:
    layout = copy.deepcopy(released_layout(128))
    MUTATIONS[name](layout)
    assert check_layout(layout, RELEASED) != []


@pytest.mark.parametrize("folder", FOLDERS)
def test_generated_layout_agrees(folder: str) -> None:
    generated = ROOT / "generated" / folder
    layout = json.loads((generated / "layout.json").read_text(encoding="utf-8"))
    preset = json.loads((generated / "plan.json").read_text(encoding="utf-8"))["values"]["model"]["value"]
    config = json.loads((ROOT / "specs" / "models" / preset / "config.json").read_text(encoding="utf-8"))
    assert check_layout(layout, config) == []
