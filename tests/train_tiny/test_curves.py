"""The picture of the training runs: what was recorded, to scale, legible, the same bytes each time."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import curves
import pytest
from chart import Chart, Line, apart, draw_chart, ticks
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.codegen.drawing.canvas import Canvas, text_width
from deepinfer_gen.diagnostics import InputError

SVG = "{http://www.w3.org/2000/svg}"


def command(*options: str) -> None:
    parser = argparse.ArgumentParser()
    curves.add_arguments(parser)
    curves.run(parser.parse_args(options))


@pytest.fixture(scope="module")
def drawn() -> str:
    return curves.training_svg({name: curves.read_record(curves.RECORDS / f"{name}.jsonl") for name in curves.NAMES})


def test_the_committed_picture_is_what_the_command_draws(tmp_path: Path) -> None:
    """To renew it: python tools/train_tiny curves"""
    command("-o", str(tmp_path / "training.svg"))
    assert (tmp_path / "training.svg").read_bytes() == curves.PICTURE.read_bytes()


def test_every_figure_of_the_records_is_within_its_axes(drawn: str) -> None:
    root = ElementTree.fromstring(drawn)
    lines = list(root.iter(f"{SVG}polyline"))
    records = {name: curves.read_record(curves.RECORDS / f"{name}.jsonl") for name in curves.NAMES}
    sizes = [len(line.attrib["points"].split()) for line in lines]
    counts = {name: len(record) for name, record in records.items()}
    assert sizes == [counts["backbone"]] * 2 + [counts["polish"]] * 3 + [counts["drafter"]] * 6
    frames = [int(line.attrib["y1"]) for line in root.iter(f"{SVG}line") if line.attrib["stroke"] == "#9aa5b1"]
    for line in lines:
        points = [tuple(map(int, point.split(","))) for point in line.attrib["points"].split()]
        assert [x for x, _ in points] == sorted({x for x, _ in points})
        bottom = min(frame for frame in frames if frame >= points[-1][1])
        assert all(bottom - 220 <= y <= bottom for _, y in points)


def test_no_label_touches_another(drawn: str) -> None:
    rows: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for text in ElementTree.fromstring(drawn).iter(f"{SVG}text"):
        x, y, size = (int(text.attrib[name]) for name in ("x", "y", "font-size"))
        width = text_width(text.text or "", size)
        left = x - {"start": 0, "middle": width // 2, "end": width}[text.attrib["text-anchor"]]
        assert left >= 0
        assert left + width <= 1200
        rows[y].append((left, left + width, text.text or ""))
    for labels in rows.values():
        for (_, right, a), (left, _, b) in pairwise(sorted(labels)):
            assert right <= left, f"'{a}' runs into '{b}'"


def test_a_chart_by_hand() -> None:
    """In a box of 310 × 220 at (10, 20) the axes are 200 × 100 from (56, 94)."""
    canvas = Canvas(400, "t")
    chart = Chart("Title", "nats", (5, 10), (Line("a", "#111111", (3.0, 1.0)),), 1.0, 5.0, ((5, "here"),))
    draw_chart(canvas, chart, 10, 20, 310, 220)
    root = ElementTree.fromstring(canvas.svg(300, "#ffffff", "#000000"))
    (line,) = root.iter(f"{SVG}polyline")
    assert line.attrib["points"] == "156,144 256,194"
    texts = {text.text: (int(text.attrib["x"]), int(text.attrib["y"])) for text in root.iter(f"{SVG}text")}
    assert {"Title", "nats", "a", "here", "optimizer steps"} <= texts.keys()
    assert texts["1.000"] == (264, 198)
    assert (texts["5"], texts["1"]) == ((48, 98), (48, 198))
    assert texts["10"] == (256, 214)
    assert "156" in [mark.attrib["x1"] for mark in root.iter(f"{SVG}line") if mark.attrib["y1"] == "94"]


def test_ticks_by_hand() -> None:
    assert ticks(0, 5600) == [0, 2000, 4000]
    assert ticks(0, 800) == [0, 200, 400, 600, 800]
    assert ticks(1.0, 5.0) == [1, 2, 3, 4, 5]
    assert ticks(0.2, 0.8) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert ticks(0.0, 2.5) == [0, 0.5, 1, 1.5, 2, 2.5]


@given(st.lists(st.integers(0, 300), max_size=8))
def test_labels_come_apart_in_their_order(places: list[int]) -> None:
    found = apart(places, 13)
    assert all(b - a >= 13 for a, b in pairwise(sorted(found)))
    assert all(moved >= place for moved, place in zip(found, places, strict=True))
    order = sorted(range(len(places)), key=lambda i: places[i])
    assert [found[i] for i in order] == sorted(found)
    if all(b - a >= 13 for a, b in pairwise(sorted(places))):
        assert found == places


def test_a_run_that_began_later_is_marked(drawn: str, tmp_path: Path) -> None:
    """Where the clock of the record goes back."""
    for name in curves.NAMES:
        lines = (curves.RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        whole = [{**json.loads(line), "seconds": float(i)} for i, line in enumerate(lines)]
        text = "".join(json.dumps(line) + "\n" for line in whole)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    command("--records", str(tmp_path), "-o", str(tmp_path / "out.svg"))
    assert ">next run<" not in (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert drawn.count(">next run<") == 2  # both charts of the drafter


@pytest.mark.parametrize("text", [None, "", "{", '{"no": 1}\n', "[1]\n"])
def test_a_record_that_is_none(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "backbone.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        command("--records", str(tmp_path), "-o", str(tmp_path / "out.svg"))
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.file) == ("DI449", str(path))
    assert not (tmp_path / "out.svg").exists()


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="rsvg-convert is not installed")
def test_a_renderer_draws_it(tmp_path: Path) -> None:
    subprocess.run(["rsvg-convert", curves.PICTURE, "-o", tmp_path / "x.png"], check=True)
    png = (tmp_path / "x.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == 1200
