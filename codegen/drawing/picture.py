"""What the pictures show, taken from ``layout.json``: groups of equal state regions, parts of a block, readers.

Only grouping and scaling happens here; every offset and size is the layout's. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Neighbouring regions of a state slot that are alike. ``each`` is the bytes of one, its ``padding`` included."""

    title: str
    layers: tuple[int, ...]
    offset: int
    each: int
    padding: int
    rows: int
    row_bytes: int
    format: str
    stored: bool

    @property
    def bytes(self) -> int:
        """Bytes of the whole group."""
        return self.each * len(self.layers)


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A run of bytes in a block: ``kind`` is ``main``, ``index`` or ``padding``; padding has no rows."""

    kind: str
    offset: int
    bytes: int
    rows: int = 0
    row_bytes: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The region of one KV source layer, its parts in order, and the layers that read it (itself first)."""

    layer: int
    ratio: int
    offset: int
    bytes: int
    parts: tuple[BlockPart, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that both drawings need. ``tail`` is the padding at the end of a block, if any."""

    name: str
    backbone_layers: int
    slot_bytes: int
    slots: int
    stored_bytes: int
    groups: tuple[StateGroup, ...]
    block_tokens: int
    block_bytes: int
    blocks: int
    row_layout: str
    sources: tuple[BlockSource, ...]
    tail: BlockPart | None


def picture_of(name: str, layout: Mapping[str, Any], *, backbone_layers: int) -> Picture:
    """The picture of an engine's ``layout.json``; layers from ``backbone_layers`` on are draft layers."""
    block, state = layout["block"], layout["state"]
    sources = tuple(_source(region, block["aliases"]) for region in block["regions"])
    used = sum(s.bytes for s in sources)
    tail = BlockPart("padding", used, block["bytes"] - used) if block["bytes"] > used else None
    return Picture(
        name=name,
        backbone_layers=backbone_layers,
        slot_bytes=state["slot_bytes"],
        slots=state["count"],
        stored_bytes=state["stored_bytes"],
        groups=tuple(_groups(state["regions"], backbone_layers)),
        block_tokens=block["tokens"],
        block_bytes=block["bytes"],
        blocks=block["count"],
        row_layout=block["row_layout"],
        sources=sources,
        tail=tail,
    )


def proportional(sizes: Sequence[int], width: int, least: int) -> tuple[list[int], list[bool]]:
    """Whole widths that sum to ``width``, proportional to ``sizes`` but none under ``least``.

    The second list says which were widened, so that they can be marked as not to scale. When ``width`` has no room
    for ``least`` everywhere, or all sizes are 0, all are equal.
    """
    if len(sizes) * least >= width or not any(sizes):
        edges = [width * i // len(sizes) for i in range(len(sizes) + 1)]
        return [b - a for a, b in pairwise(edges)], [len(set(sizes)) > 1] * len(sizes)
    widened = [False] * len(sizes)
    while True:
        free = width - least * sum(widened)
        total = sum(s for s, w in zip(sizes, widened, strict=True) if not w)
        narrow = [not w and s * free < least * total for s, w in zip(sizes, widened, strict=True)]
        if not any(narrow):
            break
        widened = [w or n for w, n in zip(widened, narrow, strict=True)]
    edges, sum_sizes, fixed = [0], 0, 0
    for size, wide in zip(sizes, widened, strict=True):
        fixed, sum_sizes = (fixed + least, sum_sizes) if wide else (fixed, sum_sizes + size)
        edges.append(fixed + free * sum_sizes // total)
    return [b - a for a, b in pairwise(edges)], widened


def _groups(regions: Sequence[Mapping[str, Any]], backbone: int) -> list[StateGroup]:
    groups: list[StateGroup] = []
    for region in regions:
        new = StateGroup(
            title=_title(region, backbone),
            layers=(region["layer"],),
            offset=region["offset"],
            each=region["bytes"],
            padding=region["padding"],
            rows=region["rows"],
            row_bytes=region["row_bytes"],
            format=region["format"],
            stored=region["stored"],
        )
        if groups and _alike(groups[-1], new):
            groups[-1] = replace(groups[-1], layers=groups[-1].layers + new.layers)
        else:
            groups.append(new)
    return groups


def _alike(a: StateGroup, b: StateGroup) -> bool:
    """Whether two groups differ in nothing but their layers and where they lie."""
    return replace(a, layers=b.layers, offset=b.offset) == b


def _title(region: Mapping[str, Any], backbone: int) -> str:
    match region["kind"]:
        case "swa" if region["layer"] >= backbone:
            return "draft windows"
        case "swa":
            return "stored windows" if region["stored"] else "consumer windows"
        case "ca_state":
            return "KV accumulators"
        case kind:
            return "index accumulators" if kind == "ica_state" else str(kind)


def _source(region: Mapping[str, Any], aliases: Sequence[Mapping[str, int]]) -> BlockSource:
    parts = [
        BlockPart(kind, p["offset"], p["rows"] * p["row_bytes"], p["rows"], p["row_bytes"], p["format"])
        for kind in ("main", "index")
        if (p := region[kind])
    ]
    if region["padding"]:
        parts.append(BlockPart("padding", region["offset"] + region["bytes"] - region["padding"], region["padding"]))
    return BlockSource(
        layer=region["layer"],
        ratio=region["ratio"],
        offset=region["offset"],
        bytes=region["bytes"],
        parts=tuple(parts),
        readers=(region["layer"], *(a["layer"] for a in aliases if a["of"] == region["layer"])),
    )
