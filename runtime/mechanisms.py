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

    ``spec_key`` is the key to change in the spec when it is not ``key``.
    """

    key: str
    asks: Callable[[Any], bool]
    sentence: str
    spec_key: str = ""


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("engine.type", lambda v: v == "PROMPT", "prefill-only engines are not built yet"),
    Unbuilt("engine.type", lambda v: v == "COMPLETION", "decode-only engines are not built yet"),
    Unbuilt("hardware.backend", lambda v: v != "cpu", "only the cpu backend is built yet", "hardware"),
    Unbuilt("parallel.dp", lambda v: v > 1, "several attention ranks are not built yet"),
    Unbuilt("parallel.ep", lambda v: v > 1, "several expert ranks are not built yet"),
    Unbuilt("parallel.cp", lambda v: v > 1, "context-parallel prefill is not built yet"),
    Unbuilt("speculative.nextn", lambda v: v > 0, "drafting is not built yet"),
    Unbuilt("speculative.verify", lambda v: v == "varlen", "variable-length verification is not built yet"),
    Unbuilt("yoco.mode", lambda v: v != "off", "YOCO prefill truncation is not built yet"),
    Unbuilt("schedule.zos", lambda v: v == "on", "zero-overhead scheduling is not built yet"),
    Unbuilt("determinism.batch_invariant", lambda v: v is True, "batch-invariant operators are not built yet"),
    Unbuilt(
        "model.config.engram_max_ngram_size",
        lambda v: v != 4,
        "n-grams of other than 4 tokens are not built yet: the scheduler hands over the 3 ids before a row",
        "model",
    ),
    Unbuilt("numerics.policy", lambda v: v != "float32_unquantized", "this numeric policy is not built yet"),
)


def refuse_unbuilt(name: str, values: PlanValues) -> None:
    """Raise one ``InputError`` (DI300) with every mechanism that the Plan needs and the runtime lacks.

    ``values`` is the content of ``plan.json`` under that key; each diagnostic has the key, its value and the line that
    set it.
    """
    faults = [
        _fault(name, entry, values)
        for entry in UNBUILT
        if entry.key in values and entry.asks(values[entry.key]["value"])
    ]
    if faults:
        raise InputError(faults)


def _fault(name: str, entry: Unbuilt, values: PlanValues) -> Diagnostic:
    sources = [spec_line(values, key) for key in (entry.key, entry.spec_key) if key in values]
    written = next((s for s in sources if _IS_LINE(s)), "")
    file, line, column = written.rsplit(":", 2) if written else ("", "0", "0")
    origin = "" if sources[0] == written else f" ({sources[0]})"
    return Diagnostic(
        "DI300",
        f"engine '{name}' cannot run: {entry.key} is {values[entry.key]['value']!r}{origin}, and {entry.sentence}",
        file=file,
        line=int(line),
        column=int(column),
        help=f"it can be planned, checked and generated; to run it, change {entry.spec_key or entry.key}",
    )


def spec_line(values: PlanValues, key: str) -> str:
    """Where a Plan value was set: ``file:line:col`` of the spec, another source, or ``default``."""
    traced = values[key]
    if traced["source"] and (traced["source"] != "default" or not traced["inputs"]):
        return str(traced["source"])
    roots = [spec_line(values, k) for k in traced["inputs"]]
    return next((r for r in roots if _IS_LINE(r)), "default")
