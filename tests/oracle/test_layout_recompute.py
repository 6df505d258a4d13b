"""The layout of every generated folder equals a second, independent computation; each kind of fault is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import model_plan
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve

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


def scales(offset: int, rows: int, data: int, size: int, *, split: bool) -> dict[str, int]:
    """Behind each row's data, or behind the data of all rows."""
    if split:
        return {"offset": offset + rows * data, "bytes": size, "stride": size, "data_bytes": data, "data_stride": data}
    stride = data + size
    return {"offset": offset + data, "bytes": size, "stride": stride, "data_bytes": data, "data_stride": stride}


def released_layout(tokens: int, *, split: bool = False) -> dict[str, Any]:
    """The released model's layout typed out: 288-byte main, 68-byte index, 528-byte window rows, nextn 5.

    Block 128: 64 x 288 = 18,432 and 64 x 68 = 4,352 make 22,784 for a ratio-2 source, 45,568 for the ratio-1 source.
    Block 32: 16 x 288 = 4,608 and 16 x 68 = 1,088 make 5,696 and 11,392; 3 x 5,696 + 11,392 = 28,480, padded by 64.
    """
    pair, size, padding = {128: (22_784, 113_920, 0), 32: (5_696, 28_544, 64)}[tokens]
    blocks = []
    for layer, offset in ((2, 0), (8, pair), (14, 2 * pair), (20, 3 * pair)):
        ratio = 1 if layer == 20 else 2
        rows = tokens // ratio
        main = {"format": "nvfp4_g16", "offset": offset, "rows": rows, "row_bytes": 288,
                "scales": scales(offset, rows, 256, 32, split=split)}  # fmt: skip
        index = {"format": "mxfp4_g32", "offset": offset + rows * 288, "rows": rows, "row_bytes": 68,
                 "scales": scales(offset + rows * 288, rows, 64, 4, split=split)}  # fmt: skip
        blocks.append({"name": f"kv.{layer}", "layer": layer, "ratio": ratio, "offset": offset,
                       "bytes": pair * 2 // ratio, "padding": 0, "main": main, "index": index})  # fmt: skip
    states = [
        {"name": f"swa.{n}", "kind": "swa", "layer": n, "format": "mxfp8_g32", "offset": 70_752 * n, "bytes": 70_752,
         "padding": 0, "rows": 134, "row_bytes": 528, "stored": n < 20,
         "scales": scales(70_752 * n, 134, 512, 16, split=split)}
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
                  "row_layout": "split" if split else "interleaved", "regions": blocks,
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
    "another name for the row layout": _set("block", "row_layout", to="split"),
    "no layout at all": _set("block", "row_layout", to="tiled"),
    "scales inside the data": _set("block", "regions", 0, "main", "scales", "offset", to=224),
    "scales of a ring that start late": _set("state", "regions", 3, "scales", "offset", to=3 * 70_752 + 528),
    "scales too short": _set("block", "regions", 1, "index", "scales", "bytes", to=2),
    "scales with the stride of split rows": _set("state", "regions", 8, "scales", "stride", to=16),
    "data with the stride of split rows": _set("block", "regions", 2, "main", "scales", "data_stride", to=256),
    "data of another size": _set("block", "regions", 2, "main", "scales", "data_bytes", to=288),
    "a ring without scales": lambda layout: layout["state"]["regions"][5].pop("scales"),
    "index rows without scales": lambda layout: layout["block"]["regions"][3]["index"].pop("scales"),
    "an accumulator with scales": lambda layout: layout["state"]["regions"][43].update(
        scales=scales(3_042_336, 7, 4_032, 64, split=False)
    ),
    "a region left out": lambda layout: layout["state"]["regions"].pop(30),
    "a source left out": lambda layout: layout["block"]["regions"].pop(1),
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("tokens", [128, 32])
def test_the_released_layout_typed_by_hand_agrees(tokens: int, split: bool) -> None:
    assert check_layout(released_layout(tokens, split=split), RELEASED) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_kind_of_fault_is_found(name: str) -> None:
    layout = copy.deepcopy(released_layout(128))
    MUTATIONS[name](layout)
    assert check_layout(layout, RELEASED) != []


@pytest.mark.parametrize("layout", ["interleaved", "split"])
@pytest.mark.parametrize("tokens", [32, 128])
def test_the_compiler_writes_the_layout_typed_by_hand(layout: str, tokens: int, tmp_path: Path) -> None:
    """Byte positions of data and scales of both row layouts, as ``layout.json`` and ``model_plan.py`` carry them."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "engine: {name: typed}\nmodel: deepseek-v4.1-flash\nhardware: sm100\nparallel: {dp: 8, ep: 8}\n"
        "limits: {max_num_seqs: 128, max_model_len: 4096}\n"
        f"kv: {{num_blocks: 1000, block_size: {tokens}, row_layout: {layout}}}\n"
    )
    plan = derive(resolve(load_spec(spec)))
    expected = released_layout(tokens, split=layout == "split")
    assert layout_content(plan) == expected
    window, entries = expected["state"]["regions"], {r["layer"]: r for r in expected["block"]["regions"]}
    for layer in model_plan(plan).layers:
        assert asdict(layer.swa)["scales"] == window[layer.index]["scales"]
        if layer.kv_source is not None and layer.main and layer.index_keys:
            assert asdict(layer.main) == entries[layer.kv_source]["main"]
            assert asdict(layer.index_keys) == entries[layer.kv_source]["index"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_generated_layout_agrees(folder: str) -> None:
    generated = ROOT / "generated" / folder
    layout = json.loads((generated / "layout.json").read_text(encoding="utf-8"))
    preset = json.loads((generated / "plan.json").read_text(encoding="utf-8"))["values"]["model"]["value"]
    config = json.loads((ROOT / "specs" / "models" / preset / "config.json").read_text(encoding="utf-8"))
    assert check_layout(layout, config) == []
