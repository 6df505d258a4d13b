"""Whether the parts of a generated folder say the same: compiled constants, JSON tables and Python tables.

The manifest shows that nothing was changed since it was written. These rules show that what was written, perhaps by a
person who re-signed the folder, is one engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from deepinfer_gen.runtime.plan_types import KernelConfig, ModelPlan, Region

Fault = tuple[str, str]
"""A file name and what it contradicts, with both values."""


def contradictions(
    *,
    constants: Mapping[str, Any],
    plan_digest: str,
    layout: Mapping[str, Any],
    graphs: Mapping[str, Any],
    kernel_table: Mapping[str, Any],
    kernels: Mapping[str, KernelConfig],
    model: ModelPlan,
) -> tuple[Fault, ...]:
    """Every place where two files of a folder, or a file and the extension, disagree."""
    return (
        *_compiled(constants, plan_digest, layout, graphs, model),
        *_graph_lookup(graphs),
        *_kernels(kernel_table, kernels),
        *_model(layout, model),
    )


def _compiled(
    constants: Mapping[str, Any],
    plan_digest: str,
    layout: Mapping[str, Any],
    graphs: Mapping[str, Any],
    model: ModelPlan,
) -> Iterator[Fault]:
    block, state = layout["block"], layout["state"]
    rows = [entry["rows"] for entry in graphs["graphs"]]
    expected = {
        "kPlanDigest": ("manifest.json", plan_digest),
        "kBlockSize": ("layout.json", block["tokens"]),
        "kNumBlocks": ("layout.json", block["count"]),
        "kBlockBytes": ("layout.json", block["bytes"]),
        "kNumSlots": ("layout.json", state["count"]),
        "kSlotBytes": ("layout.json", state["slot_bytes"]),
        "kStoredBytes": ("layout.json", state["stored_bytes"]),
        "kDroppedBytes": ("layout.json", state["dropped_bytes"]),
        "kStateRegions": ("layout.json", [n for r in state["regions"] for n in (r["offset"], r["bytes"])]),
        "kMaxTotalQ": ("graphs.json", graphs["max_total_q"]),
        "kMaxQ": ("graphs.json", graphs["max_q"]),
        "kGraphSizes": ("graphs.json", [entry["size"] for entry in graphs["graphs"]]),
        "kGraphRows": ("graphs.json", rows),
        "kMaxGraphRows": ("graphs.json", max(rows, default=0)),
        "kRuntimeMaxModelLen": ("model_plan.py", model.constants["max_positions"]),
        "kHistory": ("model_plan.py", int(model.constants["engram_max_ngram_size"]) - 1),
        "kSlidingWindow": ("model_plan.py", model.constants["sliding_window"]),
    }
    for name, (file, value) in expected.items():
        if constants.get(name) != value:
            yield file, f"says {short(value)} where the compiled {name} is {short(constants.get(name))}"


def _graph_lookup(graphs: Mapping[str, Any]) -> Iterator[Fault]:
    """The lookup must give the smallest size that holds each total."""
    sizes = [entry["size"] for entry in graphs["graphs"]]
    totals = range(graphs["max_total_q"] + 1 if sizes else 0)
    wanted = [next((i for i, size in enumerate(sizes) if size >= total), len(sizes)) for total in totals]
    if graphs["lookup"] != wanted:
        yield "graphs.json", f"lookup does not name the smallest size that holds each total: {short(graphs['lookup'])}"


def _kernels(table: Mapping[str, Any], kernels: Mapping[str, KernelConfig]) -> Iterator[Fault]:
    for name in sorted({*table, *kernels}):
        listed = table.get(name)
        defined = asdict(kernels[name]) if name in kernels else None
        if listed is None or defined is None or {**listed, "name": name} != defined:
            yield "kernels.json", f"and kernels.py differ on {name}: {short(listed)} and {short(defined)}"


def _model(layout: Mapping[str, Any], model: ModelPlan) -> Iterator[Fault]:
    """Every region of every layer must be the one that layout.json gives it."""
    state = {(region["kind"], region["layer"]): region for region in layout["state"]["regions"]}
    sources = {region["layer"]: region for region in layout["block"]["regions"]}
    aliases = {alias["layer"]: alias["of"] for alias in layout["block"]["aliases"]}
    for layer in (*model.layers, *(model.draft.layers if model.draft else ())):
        owner = layer.index if layer.index in sources else aliases.get(layer.index)
        if layer.kv_source != owner:
            yield "model_plan.py", f"layer {layer.index} reads KV of {layer.kv_source}, layout.json says {owner}"
        source = sources.get(layer.kv_source) if layer.kv_source is not None else None
        pairs = {
            "swa": (layer.swa, state.get(("swa", layer.index))),
            "ca_state": (layer.ca_state, state.get(("ca_state", layer.index))),
            "main": (layer.main, source and source["main"]),
            "index_keys": (layer.index_keys, source and source["index"]),
        }
        for name, (region, entry) in pairs.items():
            if _fields(region) != _entry(entry):
                said = f"{short(_fields(region))}, layout.json says {short(_entry(entry))}"
                yield "model_plan.py", f"layer {layer.index} {name} is {said}"
        window = state.get(("swa", layer.index))
        if window is not None and window["stored"] != layer.stored:
            yield "model_plan.py", f"layer {layer.index} stored is {layer.stored}, layout.json says {window['stored']}"


def _fields(region: Region | None) -> dict[str, Any] | None:
    return None if region is None else asdict(region)


def _entry(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if entry is None else {name: entry[name] for name in ("offset", "rows", "row_bytes", "format")}


def short(value: Any) -> str:
    """A value for a sentence, long ones cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
