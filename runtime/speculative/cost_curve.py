"""The cost curve: how long a decode step of each graph size takes. Its file, its measurement, and a modelled one.

The scheduler weighs the tokens that a step may yield against these durations, so a curve belongs to one plan, one
model and one device, and says so. The file is the JSON text that ``write_curve`` gives, sealed by its own digest::

    {"schema": 1, "plan_digest", "device", "model", "sizes": [1, 2], "milliseconds": [3.1, 3.2], "digest"}
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from deepinfer_gen.canonical import json_text, parse_sealed, sealed
from deepinfer_gen.diagnostics import Diagnostic, InputError

CURVE_SCHEMA = 1
LEAST_MS, MOST_MS = 1e-6, 1e9
"""From a nanosecond to eleven days: the range in which the scheduler's arithmetic cannot overflow."""
LEAST_RISE = 1.05
"""The largest size must take this much longer than the smallest, or the curve says nothing about the size to choose."""
REPLAYS = 5
"""Timed replays of each graph; the fastest and the slowest are dropped."""
_MEASURE = "measure the curve again with this engine, on this device"
_UNIFORM = "write speculative.verify: fixed"


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Durations in milliseconds for graph sizes in tokens.

    ``device`` names the card, ``model`` the checkpoint; ``digest`` is the sha256 of the canonical JSON of all else.
    """

    plan_digest: str
    device: str
    model: str
    sizes: tuple[int, ...]
    milliseconds: tuple[float, ...]

    @property
    def digest(self) -> str:
        """What ranks compare at start-up: with unequal curves they would run unequal totals."""
        return str(self.content()["digest"])

    def content(self) -> dict[str, Any]:
        """The content of the curve's file."""
        return sealed(
            {
                "schema": CURVE_SCHEMA,
                "plan_digest": self.plan_digest,
                "device": self.device,
                "model": self.model,
                "sizes": list(self.sizes),
                "milliseconds": list(self.milliseconds),
            }
        )


def write_curve(path: Path, curve: CostCurve) -> None:
    """Write the file at once: a reader sees the old one or the new one."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    part.write_text(json_text(curve.content()), encoding="utf-8")
    os.replace(part, path)


def read_curve(path: Path, *, plan_digest: str, sizes: Sequence[int]) -> CostCurve:
    """The curve in ``path``, which must be for the Plan with ``plan_digest`` and its graph ``sizes``.

    Raises ``InputError``: the file is missing or damaged (DI370), has another form (DI371), is for another plan
    (DI372), or its durations are none that can choose a size (DI373 to DI376).
    """
    try:
        text = path.read_bytes()
    except OSError as fault:
        raise _fault("DI370", path, f"the cost curve cannot be read: {fault.strerror}", _MEASURE) from fault
    try:
        content = parse_sealed(text)
    except ValueError as fault:
        raise _fault("DI370", path, f"the cost curve {fault}", _MEASURE) from fault
    curve = _curve(path, content)
    if curve.plan_digest != plan_digest:
        message = f"the cost curve is for the plan {curve.plan_digest}, the engine is that of {plan_digest}"
        raise _fault("DI372", path, message, _MEASURE)
    faults = tuple(_unusable(path, sizes, curve))
    if faults:
        raise InputError(faults)
    return curve


def check_curve(shown: str, sizes: Sequence[int], milliseconds: Sequence[float]) -> None:
    """Raise ``InputError`` (DI373 to DI376) unless these durations can choose a size; ``shown`` is their origin."""
    faults = tuple(_unusable(Path(shown), sizes, CostCurve("", "", "", tuple(sizes), tuple(milliseconds))))
    if faults:
        raise InputError(faults)


def trimmed_mean(replays: Sequence[float]) -> float:
    """The mean of the replays of one graph without the fastest and the slowest. Raises ``ValueError`` below three."""
    if len(replays) <= 2:
        raise ValueError(f"{len(replays)} replays, and two of them are dropped")
    return fmean(sorted(replays)[1:-1])


def agreed_milliseconds(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """One curve for a group: the mean over its ranks (``curves``, one each), forced not to fall."""
    return tuple(accumulate((fmean(column) for column in zip(*curves, strict=True)), max))


def affine_curve(values: Mapping[str, Mapping[str, Any]]) -> tuple[float, ...]:
    """Durations of a modelled device, one for each graph size of a Plan (``values`` of ``plan.json``).

    A decode step is taken to be bound by memory, everything at the peak bandwidth of the hardware table:

    - dense weights are read once a step;
    - routed experts: the largest graph reads all that the rank holds, a smaller one in proportion to its tokens;
    - each token's buffers of a layer are written once and read once, in every layer.

    ms(size) = (dense + size x (experts / largest + 2 x layers x token buffers)) / bandwidth x 1000. What it costs to
    start a step is left out: no table says it.
    """
    number = {key: int(values[key]["value"]) for key in _MODELLED}
    sizes = [int(size) for size in values["graphs.sizes"]["value"]]
    per_token = (
        number["memory.weights_experts_bytes"] / number["graphs.max_total_q"]
        + 2 * number["layers.count"] * number["memory.workspace_token_bytes"]
    )
    milliseconds_per_byte = 1e3 / number["hardware.memory_bandwidth_bytes_per_s"]
    return tuple((number["memory.weights_dense_bytes"] + size * per_token) * milliseconds_per_byte for size in sizes)


_MODELLED = (
    "memory.weights_dense_bytes",
    "memory.weights_experts_bytes",
    "memory.workspace_token_bytes",
    "layers.count",
    "graphs.max_total_q",
    "hardware.memory_bandwidth_bytes_per_s",
)


def _curve(path: Path, content: Mapping[str, Any]) -> CostCurve:
    """The content as a curve; DI371 names every key that is missing, unknown or of another type."""
    if content.get("schema") != CURVE_SCHEMA:
        message = f"the cost curve has schema {_shown(content.get('schema'))}, this version reads {CURVE_SCHEMA}"
        raise _fault("DI371", path, message, _MEASURE)
    expected = {
        **dict.fromkeys(("plan_digest", "device", "model"), ("a string", _is_text)),
        "sizes": ("a list of integers", _are_integers),
        "milliseconds": ("a list of numbers", _are_numbers),
    }
    faults = [
        f"{key} is {_shown(content[key])}, not {wanted}" if key in content else f"{key} is missing"
        for key, (wanted, holds) in expected.items()
        if key not in content or not holds(content[key])
    ]
    faults += [f"{key} is unknown" for key in sorted(set(content) - {"schema", "digest", *expected})]
    if faults:
        raise InputError(
            tuple(Diagnostic("DI371", f"the cost curve: {f}", file=str(path), help=_MEASURE) for f in faults)
        )
    return CostCurve(
        content["plan_digest"],
        content["device"],
        content["model"],
        tuple(content["sizes"]),
        tuple(float(value) for value in content["milliseconds"]),
    )


def _unusable(path: Path, sizes: Sequence[int], curve: CostCurve) -> Iterator[Diagnostic]:
    """Why the durations can choose no size: the first reason of each kind."""
    points = list(zip(curve.sizes, curve.milliseconds, strict=False))
    if curve.sizes != tuple(sizes) or len(curve.milliseconds) != len(sizes):
        message = (
            f"the cost curve has {len(curve.milliseconds)} durations for graph sizes {_shown(curve.sizes)}; the engine "
            f"has {_shown(tuple(sizes))}"
        )
        yield Diagnostic("DI373", message, file=str(path), help=_MEASURE)
        return
    wrong = next(((size, ms) for size, ms in points if not LEAST_MS <= ms <= MOST_MS), None)
    if wrong:
        message = (
            f"the cost curve gives {wrong[1]} ms for graph size {wrong[0]}; a duration lies between {LEAST_MS} and "
            f"{MOST_MS} ms"
        )
        yield Diagnostic("DI374", message, file=str(path), help=_MEASURE)
        return
    for (size, ms), (next_size, next_ms) in pairwise(points):
        if next_ms < ms:
            message = f"the cost curve falls from {ms} ms at graph size {size} to {next_ms} ms at {next_size}"
            yield Diagnostic("DI375", message, file=str(path), help=_MEASURE)
            return
    if len(points) > 1 and points[-1][1] < points[0][1] * LEAST_RISE:
        message = (
            f"the cost curve is flat: {points[0][1]} ms at graph size {points[0][0]}, {points[-1][1]} ms at "
            f"{points[-1][0]}, under 5 % more; no size can be told from another"
        )
        yield Diagnostic("DI376", message, file=str(path), help=f"{_MEASURE}; or {_UNIFORM}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_LONGEST = 80


def _fault(code: str, path: Path, message: str, remedy: str) -> InputError:
    return InputError(Diagnostic(code, message, file=str(path), help=remedy))
