"""The memory layout in a terminal: boxes as wide as their share, and a table with the exact numbers."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_gen.codegen.drawing.picture import Picture, proportional
from deepinfer_gen.codegen.text import columns, number_ranges, write_bytes

_LEAST_BOX = 4
_ASCII = str.maketrans("┌┐└┘─│┬┴├┤┼×–·…", "++++-|+++++x--.")


def layout_lines(picture: Picture, *, width: int, unicode: bool = True) -> list[str]:
    """The picture as lines of at most ``width`` columns; tables may be wider. ``unicode`` off uses ASCII only."""
    lines = [
        *_state(picture, max(width, 40)),
        "",
        *_block(picture, max(width, 40)),
    ]
    return lines if unicode else [line.translate(_ASCII) for line in lines]


def _state(picture: Picture, width: int) -> list[str]:
    groups = [g for g in picture.groups if g.bytes]
    letters = {g: chr(ord("A") + i) for i, g in enumerate(picture.groups)}
    labels = [(f"{g.title} {number_ranges(g.layers)}", number_ranges(g.layers), letters[g]) for g in groups]
    total = picture.slot_bytes * picture.slots
    stored, dropped = picture.stored_bytes, picture.slot_bytes - picture.stored_bytes
    table = [
        [
            letters[g],
            g.title,
            "stored" if g.stored else "dropped",
            f"layers {number_ranges(g.layers)}",
            f"{len(g.layers)} × {g.rows:,} × {g.row_bytes:,} B",
            g.format,
            f"padding {g.padding} B" if g.padding else "",
            f"at {g.offset:,}",
            f"{g.bytes:,} B",
        ]
        for g in picture.groups
    ]
    return [
        f"State slot of {picture.name}: {picture.slot_bytes:,} B · {picture.slots:,} slots (slot 0 is padding) ·"
        f" {write_bytes(total)}",
        *_boxes([g.bytes for g in groups], labels, width),
        f"stored {stored:,} B (one copy) · dropped {dropped:,} B",
        "",
        *columns(table, "<<<<><<>>"),
    ]


def _block(picture: Picture, width: int) -> list[str]:
    parts = [(s, p) for s in picture.sources for p in s.parts]
    sizes = [p.bytes for _, p in parts]
    labels = [
        (f"{p.kind} of layer {s.layer}", f"{p.kind} {s.layer}", p.kind, "") if p.rows else ("padding", "pad", "")
        for s, p in parts
    ]
    if picture.tail:
        sizes.append(picture.tail.bytes)
        labels.append(("padding", "pad", ""))
    total = picture.block_bytes * picture.blocks
    table = [
        [
            f"layer {s.layer}",
            p.kind,
            f"{p.rows:,} × {p.row_bytes:,} B" if p.rows else "",
            p.format,
            f"read by layers {number_ranges(s.readers)}" if p.rows else "",
            f"at {p.offset:,}",
            f"{p.bytes:,} B",
        ]
        for s, p in parts
    ]
    if picture.tail:
        table.append(["block", "padding", "", "", "", f"at {picture.tail.offset:,}", f"{picture.tail.bytes:,} B"])
    return [
        f"KV block of {picture.block_tokens} tokens: {picture.block_bytes:,} B · {picture.row_layout} rows ·"
        f" {picture.blocks:,} blocks (block 0 is padding) · {write_bytes(total)}",
        *_boxes(sizes, labels, width),
        "",
        *columns(table, "<<><<>>"),
    ]


def _boxes(sizes: Sequence[int], labels: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """One row of joined boxes; each shows the first of its labels that fits. Boxes too narrow to scale are widened."""
    if not sizes:
        return []
    widths, _ = proportional(sizes, width - 1, _LEAST_BOX)
    cells = []
    for box, choices in zip(widths, labels, strict=True):
        label = next((c for c in choices if len(c) <= box - 1), "")
        cells.append(f"{label:^{box - 1}}")
    rules = ["─" * (w - 1) for w in widths]
    return [f"┌{'┬'.join(rules)}┐", f"│{'│'.join(cells)}│", f"└{'┴'.join(rules)}┘"]
