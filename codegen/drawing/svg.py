"""The memory layout as an SVG: the state slot above, the KV block with the layers that read it below."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_gen.codegen.drawing.canvas import Canvas, text_width
from deepinfer_gen.codegen.drawing.picture import BlockSource, Picture, StateGroup, proportional
from deepinfer_gen.codegen.text import number_ranges, write_bytes

WIDTH = 1200
LEFT = 40
SPAN = WIDTH - 2 * LEFT
PAPER = "#ffffff"
MUTED = "#616e7c"
RULE = "#cbd2d9"
NEUTRAL = "#e4e7eb"
# (strong, light) of each series; the order is the order of appearance. Chosen to differ in lightness too.
STATE_COLOURS = {
    "stored windows": ("#2f6fb0", "#bcd6f0"),
    "consumer windows": ("#c8701a", "#fbdcb8"),
    "draft windows": ("#3f8f4f", "#c5e6c8"),
    "KV accumulators": ("#7a4fa3", "#dccbee"),
}
SOURCE_COLOURS = (
    ("#2b7a8c", "#bfe3ea"), ("#b0475f", "#f5cbd5"), ("#6b7a1f", "#e2e8b5"), ("#5a5fb0", "#d2d4f2"),
    ("#a8601c", "#f6d9bb"), ("#4f7d57", "#cfe6d2"),
)  # fmt: skip
_OTHER = (MUTED, NEUTRAL)
_LEAST_CELL = 16
_BAR = 54


def layout_svg(picture: Picture) -> str:
    """The whole picture; equal layouts give equal bytes."""
    canvas = Canvas(WIDTH, f"Memory layout of {picture.name}")
    canvas.text(LEFT, 46, picture.name, size=22, bold=True)
    canvas.text(
        LEFT, 68, "memory layout: what one sequence and one block of tokens occupy, in bytes", size=13, fill=MUTED
    )
    bottom = _state(canvas, picture, 112)
    bottom = _block(canvas, picture, bottom + 46)
    bottom = _legend(canvas, bottom + 34)
    return canvas.svg(bottom + 24, PAPER, "#9aa5b1")


def _heading(canvas: Canvas, y: int, title: str, detail: str) -> None:
    canvas.text(LEFT, y, title, size=16, bold=True)
    canvas.text(LEFT + SPAN, y, detail, size=13, fill=MUTED, anchor="end")
    canvas.line(LEFT, y + 10, LEFT + SPAN, y + 10, RULE)


def _state(canvas: Canvas, picture: Picture, y: int) -> int:
    total = picture.slot_bytes * picture.slots
    _heading(
        canvas, y, "State slot",
        f"{picture.slot_bytes:,} B each · {picture.slots:,} slots, slot 0 is padding · {write_bytes(total)}",
    )  # fmt: skip
    cells = [(group, layer) for group in picture.groups if group.each for layer in group.layers]
    widths, widened = proportional([g.each for g, _ in cells], SPAN, _LEAST_CELL)
    top, x = y + 52, LEFT
    ends: dict[int, int] = {0: LEFT}
    for (group, layer), width, wide in zip(cells, widths, widened, strict=True):
        strong, light = STATE_COLOURS.get(group.title, _OTHER)
        at = group.offset + group.each * group.layers.index(layer)
        tip = f"{group.title}, layer {layer}: bytes {at:,} to {at + group.each:,}"
        canvas.rect(x, top, width, _BAR, light, stroke=strong, tip=tip)
        gap = max(3, width * group.padding // group.each) if group.padding else 0
        if gap:
            canvas.rect(x + width - gap, top, gap, _BAR, "url(#gap)", stroke=strong)
        if text_width(str(layer), 10) + 2 <= width - gap:
            middle = x + (width - gap) // 2
            canvas.text(middle, top + _BAR // 2 + 4, str(layer), size=10, fill=strong, anchor="middle", bold=True)
        if wide:
            canvas.break_mark(x + width // 2, top + _BAR, PAPER, strong)
        x += width
        ends[at + group.each] = x
    dropped = picture.slot_bytes - picture.stored_bytes
    cut = ends[picture.stored_bytes]
    _brace(
        canvas, LEFT, cut, top - 8, STATE_COLOURS["stored windows"][0], f"stored {picture.stored_bytes:,} B", "one copy"
    )
    _brace(canvas, cut, LEFT + SPAN, top - 8, MUTED, f"dropped {dropped:,} B", "rebuilt by replay")
    bounds = [0, *(g.offset + g.bytes for g in picture.groups if g.each)]
    below = _ruler(canvas, [(ends[b], b) for b in bounds], top + _BAR)
    return _state_table(canvas, picture.groups, below + 26)


def _brace(canvas: Canvas, x1: int, x2: int, y: int, colour: str, text: str, more: str) -> None:
    if x2 - x1 < 8:
        return
    canvas.line(x1 + 2, y, x2 - 2, y, colour, weight=2)
    canvas.line(x1 + 2, y - 1, x1 + 2, y + 5, colour, weight=2)
    canvas.line(x2 - 2, y - 1, x2 - 2, y + 5, colour, weight=2)
    for label in (f"{text} · {more}", text):
        if text_width(label, 13) < x2 - x1:
            canvas.text((x1 + x2) // 2, y - 7, label, size=13, fill=colour, anchor="middle", bold=True)
            return


def _ruler(canvas: Canvas, marks: Sequence[tuple[int, int]], y: int) -> int:
    """Offsets under a bar; a label that would touch its left neighbour goes one line lower. Gives the lowest line."""
    free: list[int] = []
    lowest = y
    for x, offset in marks:
        label = f"{offset:,}"
        half = text_width(label, 11) // 2 + 4
        middle = min(max(x, LEFT + half - 4), LEFT + SPAN - half + 4)
        level = next((i for i, end in enumerate(free) if middle - half >= end), len(free))
        free[level : level + 1] = [middle + half]
        baseline = y + 20 + 14 * level
        canvas.line(x, y, x, y + 6 if level else baseline - 11, MUTED)
        canvas.text(middle, baseline, label, size=11, fill=MUTED, anchor="middle")
        lowest = max(lowest, baseline)
    return lowest


def _state_table(canvas: Canvas, groups: Sequence[StateGroup], y: int) -> int:
    for group in groups:
        strong, light = STATE_COLOURS.get(group.title, _OTHER)
        canvas.rect(LEFT, y - 11, 14, 14, light, stroke=strong)
        canvas.text(LEFT + 24, y, group.title, size=13, bold=True)
        canvas.text(LEFT + 190, y, f"layers {number_ranges(group.layers)}", size=13)
        shape = f"{len(group.layers)} × {group.rows:,} rows × {group.row_bytes:,} B"
        canvas.text(LEFT + 360, y, shape, size=13)
        canvas.text(LEFT + 570, y, group.format, size=13, fill=MUTED)
        canvas.text(
            LEFT + 690, y, f"padding {group.padding} B each" if group.padding else "no padding", size=13, fill=MUTED
        )
        canvas.text(LEFT + 960, y, f"at {group.offset:,}", size=13, fill=MUTED, anchor="end")
        canvas.text(LEFT + SPAN, y, f"{group.bytes:,} B", size=13, anchor="end")
        y += 24
    return y - 24


def _block(canvas: Canvas, picture: Picture, y: int) -> int:
    total = picture.block_bytes * picture.blocks
    _heading(
        canvas, y, "KV block",
        f"{picture.block_tokens} tokens · {picture.block_bytes:,} B each · {picture.row_layout} rows ·"
        f" {picture.blocks:,} blocks, block 0 is padding · {write_bytes(total)}",
    )  # fmt: skip
    colours = {s.layer: SOURCE_COLOURS[i % len(SOURCE_COLOURS)] for i, s in enumerate(picture.sources)}
    strip = y + 46
    canvas.text(LEFT, strip - 10, "layers, by the rows they read; a filled layer owns them", size=12, fill=MUTED)
    spans = _layer_strip(canvas, picture, colours, strip)
    top = strip + 28 + 46
    sizes = [p.bytes for s in picture.sources for p in s.parts] + ([picture.tail.bytes] if picture.tail else [])
    widths, widened = proportional(sizes, SPAN, _LEAST_CELL)
    x, marks = LEFT, [(LEFT, 0)]
    for source in picture.sources:
        count = len(source.parts)
        own, widths = widths[:count], widths[count:]
        wide, widened = widened[:count], widened[count:]
        x1, x2 = spans[source.layer]
        canvas.polygon(
            [(x1, strip + 29), (x2, strip + 29), (x + sum(own), top - 1), (x, top - 1)], colours[source.layer][1]
        )
        x = _source(canvas, source, colours[source.layer], own, wide, x, top)
        marks.append((x, source.offset + source.bytes))
    if picture.tail:
        canvas.rect(x, top, widths[0], _BAR, "url(#gap)", stroke=MUTED, tip=f"padding {picture.tail.bytes} B")
        if widened[0]:
            canvas.break_mark(x + widths[0] // 2, top + _BAR, PAPER, MUTED)
        marks.append((LEFT + SPAN, picture.block_bytes))
    below = _ruler(canvas, marks, top + _BAR)
    return _block_table(canvas, picture, colours, below + 26)


def _layer_strip(
    canvas: Canvas, picture: Picture, colours: dict[int, tuple[str, str]], y: int
) -> dict[int, tuple[int, int]]:
    """One cell per backbone layer; gives for each source the horizontal span of the layers that read it."""
    reads = {layer: s.layer for s in picture.sources for layer in s.readers}
    widths, _ = proportional([1] * picture.backbone_layers, SPAN, 1)
    spans: dict[int, tuple[int, int]] = {}
    x = LEFT
    for layer, width in enumerate(widths):
        source = reads.get(layer)
        strong, light = colours[source] if source is not None else (MUTED, NEUTRAL)
        owns = source == layer
        tip = f"layer {layer}: " + ("window only" if source is None else f"reads the rows of layer {source}")
        canvas.rect(x, y, width, 28, strong if owns else light, stroke=PAPER, tip=tip)
        if text_width(str(layer), 10) + 2 <= width:
            fill = PAPER if owns else strong
            canvas.text(x + width // 2, y + 18, str(layer), size=10, fill=fill, anchor="middle", bold=owns)
        if source is not None:
            spans[source] = (spans.get(source, (x, x))[0], x + width)
        x += width
    return spans


def _source(
    canvas: Canvas, source: BlockSource, colour: tuple[str, str], widths: list[int], widened: list[bool], x: int, y: int
) -> int:
    strong, light = colour
    for part, width, wide in zip(source.parts, widths, widened, strict=True):
        fill = {"main": light, "index": PAPER, "padding": "url(#gap)"}[part.kind]
        tip = f"layer {source.layer} {part.kind}: bytes {part.offset:,} to {part.offset + part.bytes:,}"
        canvas.rect(x, y, width, _BAR, fill, stroke=strong, tip=tip)
        for label, size in ((f"{part.kind} of layer {source.layer}", 12), (part.kind, 12), (part.kind, 10)):
            if part.rows and text_width(label, size) + 10 <= width:
                canvas.text(x + width // 2, y + 24, label, size=size, fill=strong, anchor="middle", bold=True)
                break
        shape = f"{part.rows} × {part.row_bytes} B"
        if part.rows and text_width(shape, 11) + 4 <= width:
            canvas.text(x + width // 2, y + 41, shape, size=11, fill=strong, anchor="middle")
        if wide:
            canvas.break_mark(x + width // 2, y + _BAR, PAPER, strong)
        x += width
    return x


def _block_table(canvas: Canvas, picture: Picture, colours: dict[int, tuple[str, str]], y: int) -> int:
    for source in picture.sources:
        strong, light = colours[source.layer]
        canvas.rect(LEFT, y - 11, 14, 14, light, stroke=strong)
        canvas.text(LEFT + 24, y, f"layer {source.layer}", size=13, bold=True)
        entry = "one row per token" if source.ratio == 1 else f"one row per {source.ratio} tokens"
        canvas.text(LEFT + 110, y, f"{entry}, read by layers {number_ranges(source.readers)}", size=13)
        rows = [p for p in source.parts if p.rows]
        shapes = " + ".join(f"{p.rows} × {p.row_bytes} B {p.format}" for p in rows)
        canvas.text(LEFT + 430, y, shapes, size=13, fill=MUTED)
        padding = source.bytes - sum(p.bytes for p in rows)
        if padding:
            canvas.text(LEFT + 780, y, f"padding {padding} B", size=13, fill=MUTED)
        canvas.text(LEFT + 960, y, f"at {source.offset:,}", size=13, fill=MUTED, anchor="end")
        canvas.text(LEFT + SPAN, y, f"{source.bytes:,} B", size=13, anchor="end")
        y += 24
    if picture.tail:
        canvas.rect(LEFT, y - 11, 14, 14, "url(#gap)", stroke=MUTED)
        canvas.text(LEFT + 24, y, "padding to the block's alignment", size=13)
        canvas.text(LEFT + 960, y, f"at {picture.tail.offset:,}", size=13, fill=MUTED, anchor="end")
        canvas.text(LEFT + SPAN, y, f"{picture.tail.bytes:,} B", size=13, anchor="end")
        y += 24
    return y - 24


def _legend(canvas: Canvas, y: int) -> int:
    canvas.line(LEFT, y - 20, LEFT + SPAN, y - 20, RULE)
    canvas.rect(LEFT, y - 10, 14, 14, "url(#gap)", stroke=MUTED)
    canvas.text(LEFT + 22, y + 1, "alignment padding", size=12, fill=MUTED)
    canvas.rect(LEFT + 170, y - 10, 14, 14, NEUTRAL, stroke=MUTED)
    canvas.text(LEFT + 192, y + 1, "layer with a window only", size=12, fill=MUTED)
    canvas.rect(LEFT + 370, y - 10, 22, 10, PAPER, stroke=MUTED)
    canvas.break_mark(LEFT + 381, y, PAPER, MUTED)
    canvas.text(LEFT + 402, y + 1, "widened to be seen, not to scale", size=12, fill=MUTED)
    canvas.text(LEFT + SPAN, y + 1, "all other widths are in proportion to bytes", size=12, fill=MUTED, anchor="end")
    return y
