"""``curves``: the records of the training runs as one picture, ``docs/training.svg``.

The records in ``curves`` beside this file are those of the runs that made the shipped model: a JSON object a line, at
every evaluation, as ``training`` writes them (the oldest also have the epoch).
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from chart import MUTED, Chart, Line, draw_chart
from places import ROOT

from deepinfer_gen.codegen.drawing.canvas import Canvas
from deepinfer_gen.diagnostics import Diagnostic, InputError

RECORDS = Path(__file__).parent / "curves"
PICTURE = ROOT / "docs" / "training.svg"
NAMES = ("backbone", "polish", "drafter")

_WIDTH, _MARGIN = 1200, 40
_PANEL_WIDTH, _PANEL_HEIGHT, _GAP = 540, 330, 40
_TRAINING, _HELD_OUT, _LOOP = "#c8701a", "#2f6fb0", "#7a4fa3"
# One hue from dark to light, since the positions are an order.
_POSITIONS = ("#0b3c5d", "#1f6391", "#2f8aa8", "#4aa88f", "#8aa83a")

Record = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is read and written."""
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of backbone, polish and drafter.jsonl")
    parser.add_argument("-o", "--out", type=Path, default=PICTURE, help="picture to write")


def run(arguments: argparse.Namespace) -> None:
    """Draw; the same bytes for the same records."""
    picture = training_svg({name: read_record(arguments.records / f"{name}.jsonl") for name in NAMES})
    arguments.out.write_text(picture, encoding="utf-8", newline="\n")
    print(f"wrote {arguments.out}")


def read_record(path: Path) -> Record:
    """The lines of a record; ``InputError`` (DI449) for a file that is none."""
    try:
        record = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not record or not all(line["step"] > 0 for line in record):
            raise ValueError("it has no line with a step")
    except (OSError, ValueError, KeyError, TypeError) as fault:
        message = f"the record of a training cannot be read: {getattr(fault, 'strerror', None) or fault}"
        raise InputError(Diagnostic("DI449", message, file=str(path), help="name a folder of records")) from fault
    return record


def training_svg(records: dict[str, Record]) -> str:
    """The picture of the records of ``NAMES``."""
    canvas = Canvas(_WIDTH, "Training of tiny-v41-code")
    canvas.text(_MARGIN, 46, "Training of tiny-v41-code", size=22, bold=True)
    rows = "held out: the calibration split"
    canvas.text(_MARGIN, 68, f"each line ends with its last value; {rows}", size=13, fill=MUTED)
    charts = [*_losses(records["backbone"], records["polish"]), *_drafts(records["drafter"])]
    for place, chart in enumerate(charts):
        x = _MARGIN + place % 2 * (_PANEL_WIDTH + _GAP)
        y = 100 + place // 2 * (_PANEL_HEIGHT + _GAP)
        draw_chart(canvas, chart, x, y, _PANEL_WIDTH, _PANEL_HEIGHT)
    return canvas.svg(100 + 2 * _PANEL_HEIGHT + _GAP + 20, "#ffffff", MUTED)


def _losses(backbone: Record, polish: Record) -> tuple[Chart, Chart]:
    training, held_out = ("in training, with dropout", _TRAINING, "loss"), ("held out", _HELD_OUT, "held_out_loss")
    loop = ("loop loss", _LOOP, "loop_loss")
    return (
        _chart("Backbone: next token", "nats per token", backbone, [training, held_out], 1.0, 5.0),
        _chart("Polish: next token, and leaving loops", "nats", polish, [training, held_out, loop], 0.0, 2.5),
    )


def _drafts(drafter: Record) -> tuple[Chart, Chart]:
    positions = [(f"draft {k + 1}", colour, f"held_out_agreement_{k}") for k, colour in enumerate(_POSITIONS)]
    accepted = [("with the bonus token, were positions independent", _HELD_OUT, "held_out_accepted")]
    return (
        _chart(
            "Drafter: drafts that are the target's likeliest token",
            "share of held-out drafts",
            drafter,
            positions,
            0.2,
            0.8,
        ),
        _chart("Drafter: accepted length", "tokens per round", drafter, accepted, 1.0, 3.0),
    )


def _chart(title: str, unit: str, record: Record, lines: list[tuple[str, str, str]], low: float, high: float) -> Chart:
    """A chart of the given (legend, colour, field); a run's clock starts again, which tells where one began."""
    marks = tuple((a["step"], "next run") for a, b in pairwise(record) if b["seconds"] < a["seconds"])
    drawn = tuple(Line(name, colour, tuple(line[field] for line in record)) for name, colour, field in lines)
    return Chart(title, unit, tuple(line["step"] for line in record), drawn, low, high, marks)
