"""What a Plan can ask for and this runtime cannot execute yet: one table, read before anything heavy is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError

PlanValues = Mapping[str, Mapping[str, Any]]
"""Plan keys to value, unit, formula, inputs, source and why: ``values`` of ``plan.json``."""

_IS_LINE = re.compile(r"[^:]+:\d+:\d+").fullmatch


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A mechanism: the Plan key that asks for it, the values that do, and the sentence that says so.

    ``remedy`` is what to write in the spec instead.
    """

    key: str
    asks: Callable[[Any], bool]
    sentence: str
    remedy: str

    @property
    def spec_key(self) -> str:
        """The spec key that ``remedy`` sets."""
        return self.remedy.partition(":")[0]


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("engine.type", lambda v: v == "COMPLETION", "decode-only engines are not built yet", "engine.type: NORMAL"),
    Unbuilt("hardware.backend", lambda v: v != "cpu", "only the cpu backend is built yet", "hardware: cpu"),
    Unbuilt("parallel.dp", lambda v: v > 1, "several attention ranks are not built yet", "parallel.dp: 1"),
    Unbuilt("parallel.ep", lambda v: v > 1, "several expert ranks are not built yet", "parallel.ep: 1"),
    Unbuilt("parallel.cp", lambda v: v > 1, "context-parallel prefill is not built yet", "parallel.cp: 1"),
    Unbuilt(
        "parallel.engram_placement",
        lambda v: v == "host",
        "Engram tables apart from the device's memory are not built yet",
        "parallel.engram_placement: replicated",
    ),
    Unbuilt("speculative.nextn", lambda v: v > 0, "drafting is not built yet", "speculative.nextn: 0"),
    Unbuilt(
        "speculative.verify",
        lambda v: v == "varlen",
        "variable-length verification is not built yet",
        "speculative.verify: fixed",
    ),
    Unbuilt("schedule.zos", lambda v: v == "on", "zero-overhead scheduling is not built yet", "schedule.zos: off"),
)


def unbuilt(name: str, values: PlanValues) -> list[Diagnostic]:
    """Every mechanism that the Plan needs and the runtime lacks (DI300), with key, value and the line that set it.

    ``values`` is the content of ``plan.json`` under that key.
    """
    return [_fault(name, entry, values) for entry in _asked(values)]


def remedies(values: PlanValues) -> list[str]:
    """What to write in the spec so that ``run`` accepts the engine; empty if it does already."""
    return list(dict.fromkeys(entry.remedy for entry in _asked(values)))


def _asked(values: PlanValues) -> list[Unbuilt]:
    return [entry for entry in UNBUILT if entry.key in values and entry.asks(values[entry.key]["value"])]


def refuse_unbuilt(name: str, values: PlanValues) -> None:
    """Raise one ``InputError`` with all that ``unbuilt`` finds."""
    faults = unbuilt(name, values)
    if faults:
        raise InputError(faults)


def _fault(name: str, entry: Unbuilt, values: PlanValues) -> Diagnostic:
    sources = [spec_line(values, key) for key in dict.fromkeys((entry.key, entry.spec_key)) if key in values]
    written = next((s for s in sources if _IS_LINE(s)), "")
    file, line, column = written.rsplit(":", 2) if written else ("", "0", "0")
    origin = "" if sources[0] == written else f" ({sources[0]})"
    return Diagnostic(
        "DI300",
        f"engine '{name}' cannot run: {entry.key} is {values[entry.key]['value']!r}{origin}, and {entry.sentence}",
        file=file,
        line=int(line),
        column=int(column),
        help=f"it can be planned, checked and generated; to run it, write {entry.remedy}",
    )


def spec_line(values: PlanValues, key: str) -> str:
    """Where a Plan value was set: ``file:line:col`` of the spec, another source, or ``default``."""
    traced = values[key]
    if traced["source"] and (traced["source"] != "default" or not traced["inputs"]):
        return str(traced["source"])
    roots = [spec_line(values, k) for k in traced["inputs"]]
    return next((r for r in roots if _IS_LINE(r)), "default")
