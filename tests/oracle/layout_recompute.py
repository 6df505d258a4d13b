"""A second computation of the cache and state layout, from ``layout.json`` and the model's ``config.json`` alone.

It shares no code with the compiler. Every byte of a block and of a state slot is painted with the record that owns
it, so that an overlap, a hole or a record outside its region is found even where all sums agree. Sizes are bytes.

The record widths are facts of the formats: e2m1 packs two values a byte and e4m3 one; a group of 16 or 32 values has
one scale byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Json = Mapping[str, Any]

BLOCK_ALIGNMENT, REGION_ALIGNMENT, STATE_ALIGNMENT = 128, 32, 16
GAP = -1


def record_parts(fmt: str, width: int) -> tuple[int, int]:
    """Bytes of data and of scales of one row of ``width`` values."""
    match fmt:
        case "nvfp4_g16":
            return width // 2, width // 16
        case "mxfp4_g32":
            return width // 2, width // 32
        case "mxfp8_g32":
            return width, width // 32
        case "bf16":
            return 2 * width, 0
        case "fp32":
            return 4 * width, 0
    raise ValueError(f"unknown format {fmt}")


def record_bytes(fmt: str, width: int) -> int:
    """Bytes of one row of ``width`` values."""
    return sum(record_parts(fmt, width))


def check_layout(layout: Json, config: Json) -> list[str]:
    """All disagreements between ``layout`` and the layout that the model config demands; empty if there is none."""
    text: Json = config.get("text_config", config)
    row_layout = layout["block"]["row_layout"]
    return [*_check_block(layout["block"], text), *_check_state(layout["state"], text, row_layout)]


def _up(size: int, multiple: int) -> int:
    return size + (-size) % multiple


def _roles(text: Json) -> tuple[list[int], dict[int, int]]:
    """KV source layers, and for every other compressed layer the source it reads: the latest at or below it."""
    sources = list(text["kv_source_layer_ids"])
    backbone = range(text["num_hidden_layers"])
    sharing = {
        layer: max(s for s in sources if s < layer)
        for layer in backbone
        if text["compress_ratios"][layer] > 0 and layer not in sources
    }
    return sources, sharing


def _check_block(block: Json, text: Json) -> Iterator[str]:
    sources, sharing = _roles(text)
    tokens = block["tokens"]
    if block["row_layout"] not in ("interleaved", "split"):
        yield f"block.row_layout: {block['row_layout']!r} is no layout"
    owner = np.full(block["bytes"], GAP, dtype=np.int64)
    end = 0
    yield from _differ("block.regions[].layer", [r["layer"] for r in block["regions"]], sources)
    yield from _differ("formats of main rows", len({r["main"]["format"] for r in block["regions"]}), 1)
    yield from _differ("formats of index rows", len({r["index"]["format"] for r in block["regions"]}), 1)
    for number, region in enumerate(block["regions"]):
        name, ratio = region["name"], text["compress_ratios"][region["layer"]]
        yield from _differ(f"{name}.name", name, f"kv.{region['layer']}")
        yield from _differ(f"{name}.ratio", region["ratio"], ratio)
        yield from _differ(f"{name}.offset", region["offset"], end)
        cursor = end
        for part, width in (("main", text["head_dim"]), ("index", text["index_head_dim"])):
            rows = region[part]
            yield from _differ(f"{name}.{part}.rows", rows["rows"] * ratio, tokens)
            yield from _differ(f"{name}.{part}.row_bytes", rows["row_bytes"], record_bytes(rows["format"], width))
            yield from _differ(f"{name}.{part}.offset", rows["offset"], cursor)
            yield from _scales(f"{name}.{part}", rows, width, block["row_layout"])
            yield from _paint(owner, f"{name}.{part}", rows, number)
            cursor += tokens // ratio * record_bytes(rows["format"], width)
        padded = _up(cursor - end, REGION_ALIGNMENT)
        yield from _differ(f"{name}.bytes", region["bytes"], padded)
        yield from _differ(f"{name}.padding", region["padding"], padded - (cursor - end))
        end += padded
    yield from _differ("block.bytes", block["bytes"], _up(end, BLOCK_ALIGNMENT))
    yield from _differ("block.padding", block["padding"], _up(end, BLOCK_ALIGNMENT) - end)
    yield from _differ("block.alignment", block["alignment"], BLOCK_ALIGNMENT)
    declared = block["padding"] + sum(r["padding"] for r in block["regions"])
    yield from _differ("bytes of a block that no row owns", int((owner == GAP).sum()), declared)
    aliases = {a["layer"]: a["of"] for a in block["aliases"]}
    yield from _differ("block.aliases", aliases, sharing)
    yield from _differ("number of block.aliases", len(block["aliases"]), len(sharing))


def _check_state(state: Json, text: Json, row_layout: str) -> Iterator[str]:
    regions: Sequence[Json] = state["regions"]
    ratios, head_dim, backbone = text["compress_ratios"], text["head_dim"], text["num_hidden_layers"]
    cut = max(text["kv_source_layer_ids"])
    pooled = [s for s in text["kv_source_layer_ids"] if ratios[s] > 1]
    rings = [r for r in regions if r["kind"] == "swa"]
    layers = [r["layer"] for r in rings]
    drafting = len(layers) > backbone
    yield from _differ("layers of swa regions", layers, list(range(len(ratios) if drafting else backbone)))
    kinds = [r["kind"] for r in regions]
    yield from _differ("swa regions first", kinds[: len(rings)], ["swa"] * len(rings))
    for kind in ("ca_state", "ica_state"):
        yield from _differ(f"layers of {kind}", [r["layer"] for r in regions if r["kind"] == kind], pooled)
    yield from _differ("formats of swa rows", len({r["format"] for r in rings}), 1)
    backtracking = rings[0]["rows"] - text["sliding_window"]
    if backtracking < (2 if drafting else 1):
        yield f"swa ring: {rings[0]['rows']} rows leave {backtracking} for backtracking beyond the window"

    owner = np.full(state["slot_bytes"], GAP, dtype=np.int64)
    end = stored = 0
    for number, region in enumerate(regions):
        name, layer = region["name"], region["layer"]
        yield from _differ(f"{name}.name", name, f"{region['kind']}.{layer}")
        yield from _differ(f"{name}.offset", region["offset"], end)
        if region["kind"] == "ica_state":
            size = 0
            yield from _differ(f"{name}.bytes", region["bytes"], size)
            yield from _differ(f"{name}.scales", region.get("scales"), None)
        else:
            if region["kind"] == "swa":
                rows, width = text["sliding_window"] + backtracking, record_bytes(region["format"], head_dim)
                yield from _scales(name, region, head_dim, row_layout)
            else:
                yield from _differ(f"{name}.format", region["format"], "fp32")
                rows, width = ratios[layer] + backtracking - 1, 2 * head_dim * 4
                yield from _differ(f"{name}.scales", region.get("scales"), None)
            yield from _differ(f"{name}.rows", region["rows"], rows)
            yield from _differ(f"{name}.row_bytes", region["row_bytes"], width)
            size = _up(rows * width, STATE_ALIGNMENT)
            yield from _differ(f"{name}.bytes", region["bytes"], size)
            yield from _differ(f"{name}.padding", region["padding"], size - rows * width)
        yield from _paint(owner, name, region, number)
        keep = region["kind"] == "swa" and layer < cut
        yield from _differ(f"{name}.stored", region["stored"], keep)
        end += size
        stored += size if keep else 0
    yield from _differ("state.slot_bytes", state["slot_bytes"], end)
    yield from _differ("state.stored_bytes", state["stored_bytes"], stored)
    yield from _differ("state.dropped_bytes", state["dropped_bytes"], end - stored)
    yield from _differ("state.alignment", state["alignment"], STATE_ALIGNMENT)
    unowned = int((owner == GAP).sum())
    yield from _differ("bytes of a slot that no row owns", unowned, sum(r["padding"] for r in regions))


def _scales(name: str, rows: Json, width: int, row_layout: str) -> Iterator[str]:
    """Data and scales of the rows must lie as ``row_layout`` says; rows without scales must not name any."""
    data, scales = record_parts(rows["format"], width)
    expected = None
    if scales:
        apart = row_layout == "split"
        expected = {
            "offset": rows["offset"] + data * (rows["rows"] if apart else 1),
            "bytes": scales,
            "stride": scales if apart else data + scales,
            "data_bytes": data,
            "data_stride": data if apart else data + scales,
        }
    yield from _differ(f"{name}.scales", rows.get("scales"), expected)


def _paint(owner: np.ndarray, name: str, rows: Json, number: int) -> Iterator[str]:
    """Claim the bytes that the rows name; a byte claimed twice or beyond the end is a fault."""
    scales = rows.get("scales")
    runs = [(rows["offset"], scales["data_bytes"] if scales else rows["row_bytes"],
             scales["data_stride"] if scales else rows["row_bytes"])]  # fmt: skip
    if scales:
        runs.append((scales["offset"], scales["bytes"], scales["stride"]))
    for start, width, stride in runs:
        for row in range(rows["rows"]):
            offset = start + row * stride
            if offset < 0 or offset + width > owner.size:
                yield f"{name}: bytes {offset}..{offset + width} leave the {owner.size} bytes there are"
                return
            span = owner[offset : offset + width]
            if (span != GAP).any():
                yield f"{name}: row {row} overlaps another row at byte {offset + int(np.argmax(span != GAP))}"
                return
            span[:] = number


def _differ(what: str, found: object, expected: object) -> Iterator[str]:
    if found != expected:
        yield f"{what}: {found!r}, recomputed {expected!r}"
