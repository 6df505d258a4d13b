"""Line charts over training steps, drawn with the canvas of the product's pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer_gen.codegen.drawing.canvas import Canvas, text_width

MUTED, RULE, FRAME = "#616e7c", "#e4e7eb", "#9aa5b1"
_HEAD, _FOOT, _LEFT, _RIGHT = 74, 46, 46, 64
_TICKS = 5
_LINE = 13
"""Pixels between the baselines of two labels that would touch."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name in the legend, its colour, and its values at the steps of the chart."""

    name: str
    colour: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over common ``steps``; ``unit`` names the vertical axis, which covers ``low`` to ``high``.

    At the steps of ``marks`` a vertical line carries a label.
    """

    title: str
    unit: str
    steps: tuple[int, ...]
    lines: tuple[Line, ...]
    low: float
    high: float
    marks: tuple[tuple[int, str], ...] = ()


def draw_chart(canvas: Canvas, chart: Chart, x: int, y: int, width: int, height: int) -> None:
    """Draw into a box: title, legend, axes with ticks and units, lines with their last value."""
    left, right = x + _LEFT, x + width - _RIGHT
    top, bottom = y + _HEAD, y + height - _FOOT
    last = chart.steps[-1]

    def across(step: float) -> int:
        return left + round((right - left) * step / last)

    def up(value: float) -> int:
        return bottom - round((bottom - top) * (value - chart.low) / (chart.high - chart.low))

    canvas.text(x, y + 16, chart.title, size=16, bold=True)
    _legend(canvas, chart.lines, x, y + 40)
    canvas.text(x, top - 12, chart.unit, size=12, fill=MUTED)
    for value in ticks(chart.low, chart.high):
        canvas.line(left, up(value), right, up(value), RULE)
        canvas.text(left - 8, up(value) + 4, f"{value:g}", size=12, fill=MUTED, anchor="end")
    for step in ticks(0, last):
        canvas.line(across(step), bottom, across(step), bottom + 5, FRAME)
        canvas.text(across(step), bottom + 20, f"{step:,.0f}", size=12, fill=MUTED, anchor="middle")
    canvas.text((left + right) // 2, bottom + 38, "optimizer steps", size=12, fill=MUTED, anchor="middle")
    for step, label in chart.marks:
        canvas.line(across(step), top, across(step), bottom, FRAME)
        canvas.text(across(step) + 6, top + 12, label, size=12, fill=MUTED)
    canvas.line(left, bottom, right, bottom, FRAME)
    for line in chart.lines:
        points = [(across(step), up(value)) for step, value in zip(chart.steps, line.values, strict=True)]
        canvas.polyline(points, line.colour, weight=2)
    ends = [(up(line.values[-1]), line) for line in chart.lines]
    places = apart([place for place, _ in ends], _LINE)
    for place, (_, line) in zip(places, ends, strict=True):
        canvas.text(right + 8, place + 4, f"{line.values[-1]:.3f}", size=12, fill=line.colour, bold=True)


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers within ``low`` and ``high``."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def apart(places: Sequence[int], distance: int) -> list[int]:
    """The places, in their order, moved down until none is nearer to the one above it than ``distance``."""
    found = list(places)
    above: int | None = None
    for index in sorted(range(len(found)), key=lambda i: places[i]):
        if above is not None:
            found[index] = max(found[index], above + distance)
        above = found[index]
    return found


def _legend(canvas: Canvas, lines: Sequence[Line], x: int, y: int) -> None:
    for line in lines:
        canvas.rect(x, y - 6, 18, 4, line.colour)
        canvas.text(x + 24, y, line.name, size=12)
        x += 24 + text_width(line.name, 12) + 16
