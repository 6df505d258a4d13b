"""What a Plan can ask for and this runtime cannot execute yet: one table, read before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A mechanism: the Plan key that asks for it, the values that do, and the sentence that says so."""

    key: str
    asks: Callable[[Any], bool]
    sentence: str


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("engine.type", lambda v: v == "PROMPT", "prefill-only engines are not built yet"),
    Unbuilt("engine.type", lambda v: v == "COMPLETION", "decode-only engines are not built yet"),
    Unbuilt("hardware.backend", lambda v: v != "cpu", "only the cpu backend is built yet"),
    Unbuilt("parallel.dp", lambda v: v > 1, "several attention ranks are not built yet"),
    Unbuilt("parallel.ep", lambda v: v > 1, "several expert ranks are not built yet"),
    Unbuilt("parallel.cp", lambda v: v > 1, "context-parallel prefill is not built yet"),
    Unbuilt("speculative.nextn", lambda v: v > 0, "drafting is not built yet"),
    Unbuilt("speculative.verify", lambda v: v == "varlen", "variable-length verification is not built yet"),
    Unbuilt("yoco.mode", lambda v: v != "off", "YOCO prefill truncation is not built yet"),
    Unbuilt("schedule.zos", lambda v: v == "on", "zero-overhead scheduling is not built yet"),
    Unbuilt(
        "numerics.policy", lambda v: v not in ("float32_unquantized", "f32nq"), "this numeric policy is not built yet"
    ),
)


def refuse_unbuilt(plan: Mapping[str, Any]) -> None:
    """Raise one ``InputError`` (DI300) with every mechanism that the Plan needs and the runtime lacks.

    ``plan`` is the content of ``plan.json``; each diagnostic has the key, its value and the line that set it.
    """
    values: Mapping[str, Any] = plan["values"]
    faults = [
        _fault(plan["name"], entry, values) for entry in UNBUILT if entry.key in values and entry.asks(_value(values, entry.key))
    ]
    if faults:
        raise InputError(faults)


def _fault(name: str, entry: Unbuilt, values: Mapping[str, Any]) -> Diagnostic:
    source = spec_line(values, entry.key)
    written = source != "default"
    place = source.split(":") if written and source.count(":") == 2 else [source if written else "", "0", "0"]
    return Diagnostic(
        "DI300",
        f"engine '{name}' cannot run: {entry.key} is {_value(values, entry.key)!r}"
        f"{'' if written else ' by default'}, and {entry.sentence}",
        file=place[0],
        line=int(place[1]),
        column=int(place[2]),
        help="the engine can be planned, checked and generated; to run it, change that value",
    )


def spec_line(values: Mapping[str, Any], key: str) -> str:
    """Where a Plan value was set: ``file:line:col``, the hardware table entry, or ``default``."""
    traced = values[key]
    if traced["source"]:
        return str(traced["source"])
    roots = [spec_line(values, k) for k in traced["inputs"]]
    return next((r for r in roots if r != "default"), "default")


def _value(values: Mapping[str, Any], key: str) -> Any:
    return values[key]["value"]
