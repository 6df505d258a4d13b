"""The pictures of state slot and block: to scale, complete, legible, deterministic."""

from __future__ import annotations

import copy
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_spec import TINY_SPEC

from deepinfer_gen.codegen.drawing.canvas import text_width
from deepinfer_gen.codegen.drawing.picture import Picture, picture_of, proportional
from deepinfer_gen.codegen.drawing.svg import LEFT, SPAN, WIDTH, layout_svg
from deepinfer_gen.codegen.drawing.terminal import layout_lines
from deepinfer_gen.codegen.sources import open_layout
from deepinfer_gen.codegen.text import number_ranges
from deepinfer_gen.specs.presets import shipped_specs

SVG = "{http://www.w3.org/2000/svg}"


def picture(spec: str) -> Picture:
    plan, layout = open_layout(spec)
    return picture_of(plan.name, layout, backbone_layers=plan.integer("model.config.num_hidden_layers"))


@pytest.fixture(scope="module", params=sorted(shipped_specs()))
def shipped(request: pytest.FixtureRequest) -> Picture:
    return picture(request.param)


@pytest.fixture(scope="module")
def padded() -> Picture:
    """Every kind of padding at once: in each state region, in each block region, at the block's end."""
    plan, layout = open_layout(str(TINY_SPEC))
    layout = copy.deepcopy(dict(layout))
    offset = 0
    for region in layout["state"]["regions"]:
        region["padding"], region["bytes"], region["offset"] = 4096, region["bytes"] + 4096, offset
        offset += region["bytes"]
    layout["state"]["slot_bytes"] = offset
    layout["state"]["stored_bytes"] = layout["state"]["regions"][6]["offset"]
    offset = 0
    for region in layout["block"]["regions"]:
        region["padding"], region["bytes"], shift = 32, region["bytes"] + 32, offset - region["offset"]
        for rows in (region, region["main"], region["index"]):
            rows["offset"] += shift
        offset += region["bytes"]
    layout["block"]["bytes"] = offset + 64
    return picture_of("padded", layout, backbone_layers=plan.integer("model.config.num_hidden_layers"))


def test_groups_of_the_released_model() -> None:
    """By hand from the table of cache bytes of the model: 43 rings of 70,752 B, 3 accumulators of 28,672 B."""
    groups = picture("v41-flash-decode-ep64").groups
    assert [(g.title, number_ranges(g.layers), g.offset, g.each, g.stored) for g in groups] == [
        ("stored windows", "0–19", 0, 70_752, True),
        ("consumer windows", "20–39", 1_415_040, 70_752, False),
        ("draft windows", "40–42", 2_830_080, 70_752, False),
        ("KV accumulators", "2, 8, 14", 3_042_336, 28_672, False),
        ("index accumulators", "2, 8, 14", 3_128_352, 0, False),
    ]


def test_sources_of_the_released_model() -> None:
    sources = picture("v41-flash-decode-ep64").sources
    assert [(s.layer, number_ranges(s.readers), s.bytes) for s in sources] == [
        (2, "2–7", 22_784),
        (8, "8–13", 22_784),
        (14, "14–19", 22_784),
        (20, "20–39", 45_568),
    ]


def test_pictures_cover_every_byte(shipped: Picture) -> None:
    at = 0
    for group in shipped.groups:
        assert group.offset == at
        at += group.bytes
    assert at == shipped.slot_bytes
    at = 0
    for part in [p for s in shipped.sources for p in s.parts] + ([shipped.tail] if shipped.tail else []):
        assert part.offset == at
        at += part.bytes
    assert at == shipped.block_bytes


def boxes(svg: str) -> list[tuple[int, int, int, str]]:
    """Left, right, baseline and text of every label, by the width estimate the layout uses."""
    found = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        x, y, size = (int(element.attrib[a]) for a in ("x", "y", "font-size"))
        width = text_width(element.text or "", size)
        left = x - {"start": 0, "middle": width // 2, "end": width}[element.attrib["text-anchor"]]
        found.append((left, left + width, y, element.text or ""))
    return found


def assert_legible(svg: str) -> None:
    lines: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for left, right, y, text in boxes(svg):
        assert left >= 0, text
        assert right <= WIDTH, text
        lines[y].append((left, right, text))
    for labels in lines.values():
        labels.sort()
        for (_, right, a), (left, _, b) in pairwise(labels):
            assert right <= left, f"'{a}' runs into '{b}'"


def test_no_label_touches_another(shipped: Picture) -> None:
    assert_legible(layout_svg(shipped))


def test_no_label_touches_another_with_padding(padded: Picture) -> None:
    svg = layout_svg(padded)
    assert_legible(svg)
    assert svg.count('fill="url(#gap)"') >= len(padded.groups) + len(padded.sources) + 1


def test_bars_are_to_scale(shipped: Picture) -> None:
    """The rectangles of either bar tile its whole width, equal rings equally wide, block parts as their bytes say."""
    root = ElementTree.fromstring(layout_svg(shipped))
    bars: dict[str, list[Any]] = defaultdict(list)
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and rect.attrib["height"] == "54":
            bars[rect.attrib["y"]].append(rect)
    assert len(bars) == 2
    for rects in bars.values():
        x = LEFT
        for rect in rects:
            assert int(rect.attrib["x"]) == x
            x += int(rect.attrib["width"])
        assert x == LEFT + SPAN
    slot, block = bars.values()
    rings = [int(r.attrib["width"]) for r in slot if "windows" in (r.find(f"{SVG}title").text or "")]
    assert max(rings) - min(rings) <= 1
    parts = [p for s in shipped.sources for p in s.parts]
    for rect, part in zip(block, parts, strict=True):
        assert int(rect.attrib["width"]) == pytest.approx(SPAN * part.bytes / shipped.block_bytes, abs=1)


def test_svg_is_deterministic_and_plain(shipped: Picture) -> None:
    svg = layout_svg(shipped)
    assert svg == layout_svg(shipped)
    assert svg.endswith("</svg>\n")
    for banned in ("<script", "<image", "href", "<foreignObject", "NaN", "\r"):
        assert banned not in svg


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="rsvg-convert is not installed")
def test_a_renderer_draws_it(shipped: Picture, tmp_path: Path) -> None:
    (tmp_path / "x.svg").write_text(layout_svg(shipped))
    subprocess.run(["rsvg-convert", tmp_path / "x.svg", "-o", tmp_path / "x.png"], check=True)
    png = (tmp_path / "x.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") == WIDTH


def test_the_picture_in_the_documentation_is_current() -> None:
    """To renew it: deepinfer-gen draw v41-flash-decode-ep64 -o docs/layout.svg"""
    path = Path(__file__).parents[3] / "docs" / "layout.svg"
    assert path.read_text() == layout_svg(picture("v41-flash-decode-ep64"))


def test_a_name_cannot_break_the_svg() -> None:
    _, layout = open_layout(str(TINY_SPEC))
    hostile = '</title><script>"&'
    root = ElementTree.fromstring(layout_svg(picture_of(hostile, layout, backbone_layers=10)))
    assert root.find(f"{SVG}title").text == f"Memory layout of {hostile}"  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_terminal_boxes_have_the_width_asked_for(shipped: Picture, width: int, unicode: bool) -> None:
    lines = layout_lines(shipped, width=width, unicode=unicode)
    drawn = [line for line in lines if line and line[0] in "┌│└+|"]
    assert len(drawn) == 6
    assert {len(line) for line in drawn} == {width}
    if not unicode:
        "\n".join(lines).encode("ascii")


# The accumulators' 2,048 B get the least width of 4; the rings share 75 columns as 198,144 to 132,096: 45 and 30.
TINY = """\
State slot of tiny-test: 332,288 B · 20 slots (slot 0 is padding) · 6.34 MiB
┌────────────────────────────────────────────┬─────────────────────────────┬───┐
│             stored windows 0–5             │    consumer windows 6–9     │ C │
└────────────────────────────────────────────┴─────────────────────────────┴───┘
stored 198,144 B (one copy) · dropped 134,144 B

  A  stored windows      stored   layers 0–5   6 × 129 × 256 B  fp32          at 0  198,144 B
  B  consumer windows    dropped  layers 6–9   4 × 129 × 256 B  fp32    at 198,144  132,096 B
  C  KV accumulators     dropped  layers 2, 4    2 × 2 × 512 B  fp32    at 330,240    2,048 B
  D  index accumulators  dropped  layers 2, 4      2 × 2 × 0 B  fp32    at 332,288        0 B
"""


def test_terminal_picture() -> None:
    assert "\n".join(layout_lines(picture(str(TINY_SPEC)), width=80)).startswith(TINY)


def test_padding_is_named_in_the_terminal(padded: Picture) -> None:
    text = "\n".join(layout_lines(padded, width=120))
    assert "padding 4096 B" in text
    assert text.count("padding") >= len(padded.groups) + len(padded.sources) + 1


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60), st.integers(1, 2000), st.integers(1, 20))
def test_proportional_widths(sizes: list[int], width: int, least: int) -> None:
    widths, widened = proportional(sizes, width, least)
    assert sum(widths) == width
    if len(sizes) * least < width:
        assert all(w >= least for w, wide in zip(widths, widened, strict=True) if wide)
        assert all(w >= least - 1 for w in widths)
        exact = [(s, w) for s, w, wide in zip(sizes, widths, widened, strict=True) if not wide]
        for (small, a), (large, b) in pairwise(sorted(exact)):
            assert small == large or a <= b + 1


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([3, 1, 2], "1–3"), ([0, 2, 3, 7, 8, 9], "0, 2–3, 7–9")]
)
def test_number_ranges(numbers: list[int], text: str) -> None:
    assert number_ranges(numbers) == text
