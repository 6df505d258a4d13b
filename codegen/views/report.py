"""The tables of ``PLAN.md``: the Plan for people."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from deepinfer_gen.canonical import plain
from deepinfer_gen.codegen.compiler import LEAST_GCC
from deepinfer_gen.codegen.memory_report import PARTS
from deepinfer_gen.codegen.plan import Plan, Traced
from deepinfer_gen.codegen.text import GIB
from deepinfer_gen.codegen.views.layout import layer_indices
from deepinfer_gen.formula import Value

_SUMMARY = (
    "engine.type", "model.preset", "hardware.card", "numerics.policy", "limits.max_num_seqs", "limits.max_model_len",
    "speculative.nextn", "kv.bytes_per_token", "kv.block_bytes", "kv.num_blocks", "state.stored_bytes",
    "state.dropped_bytes", "state.slot_bytes", "state.num_slots", "graphs.max_total_q", "parallel.local_experts",
)  # fmt: skip
_MEMORY = (*(name for name, _ in PARTS), "total", "capacity")
_LAYER_KEYS = ("ratio", "kv_source", "index_source", "candidate_role", "engram", "rope", "stored")
_MAX_LIST = 16


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the summary or the memory table."""

    label: str
    value: str
    unit: str
    why: str
    gib: str


def report_view(plan: Plan, *, standalone: bool) -> dict[str, Any]:
    """Tables of ``PLAN.md``."""
    return {
        "title": plan.name,
        "summary": [_row(plan.values[key]) for key in _SUMMARY if key in plan],
        "memory": [_row(plan.values[f"memory.{part}_bytes"]) for part in _MEMORY],
        "layers": [_layer(plan, layer) for layer in layer_indices(plan)],
        "graphs": _graphs(plan),
        "building": _BUILD_STANDALONE if standalone else f"`deepinfer-gen build {plan.name}`, from the parent folder.",
        "sections": [
            {"title": title, "rows": [_constant(traced) for traced in group]}
            for title, group in groupby(plan.values.values(), key=lambda traced: traced.key.split(".")[0])
        ],
    }


_BUILD_STANDALONE = (
    "This folder is complete. `sh build.sh OUTPUT_FOLDER` compiles the extension module `deepinfer_engine` with one"
    f" g++ command; it needs g++ {LEAST_GCC} or later and a Python with pybind11 3, and not deepinfer-gen."
)


def _row(traced: Traced) -> Row:
    gib = f"{traced.value / GIB:.3f}" if isinstance(traced.value, int) else ""
    return Row(f"`{traced.key}`", _value(traced.value), traced.unit, _cell(traced.why), gib)


def _layer(plan: Plan, layer: int) -> list[str]:
    values = [plan[f"layers.{layer}.{name}"] for name in _LAYER_KEYS]
    return [str(layer), *(_brief(value) for value in values), str(plan[f"state.swa.{layer}.offset"])]


def _brief(value: Value) -> str:
    """A cell of the layer table; absent things are a dash."""
    if value is None or value is False:
        return "–"
    return "yes" if value is True else str(value)


def _graphs(plan: Plan) -> str:
    pairs = zip(plan.integers("graphs.sizes"), plan.integers("graphs.rows"), strict=True)
    listed = ", ".join(f"{size} ({rows})" for size, rows in pairs)
    return (
        f"Size in tokens (row capacity): {listed}." if listed else "None: a prefill engine captures no decode graphs."
    )


def _constant(traced: Traced) -> list[str]:
    formula = f"`{_cell(traced.formula)}`" if traced.formula else ""
    source = ", ".join([*filter(None, [traced.source]), *(f"{name} = `{key}`" for name, key in traced.operands)])
    cells = [f"`{traced.key}`", _value(traced.value), traced.unit, formula, _cell(source), _cell(traced.why)]
    return [cell or " " for cell in cells]


def _value(value: Value) -> str:
    if not isinstance(value, tuple):
        return {"None": "null", "True": "true", "False": "false"}.get(str(value), _cell(str(plain(value))))
    items = [_value(item) for item in value[:_MAX_LIST]]
    more = [f"… {len(value)} values, all in plan.json"] if len(value) > _MAX_LIST else []
    return f"[{', '.join([*items, *more])}]"


def _cell(text: str) -> str:
    """Text inside a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")
