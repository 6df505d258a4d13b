"""Whether the parts of a generated folder say the same: compiled constants, JSON tables and Python tables.

The manifest shows that nothing was changed since it was written. These rules show that what was written, perhaps by a
person who re-signed the folder, is one engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from deepinfer_gen.runtime.plan_types import KernelConfig, ModelPlan, Region, Scales

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
        *_bytes(layout),
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


def _bytes(layout: Mapping[str, Any]) -> Iterator[Fault]:
    """No byte of a block or a slot may belong to two rows, and data and scales must lie as ``row_layout`` says."""
    block, state = layout["block"], layout["state"]
    kv = [(f"{r['name']} {kind}", r[kind]) for r in block["regions"] for kind in ("main", "index")]
    rings = [(r["name"], r) for r in state["regions"]]
    for name, entry in (*kv, *rings):
        if entry.get("scales"):
            yield from _parts(name, entry, Scales(**entry["scales"]), block["row_layout"])
    for unit, size, regions in (("block", block["bytes"], kv), ("slot", state["slot_bytes"], rings)):
        spans = sorted((*span, name) for name, entry in regions for span in _spans(entry))
        for (_, end, first), (start, _, second) in pairwise(spans):
            if start < end:
                yield "layout.json", f"gives byte {start} of a {unit} to {first} and to {second}"
                break
        for start, end, name in spans:
            if start < 0 or end > size:
                yield "layout.json", f"lets {name} use bytes {start} to {end} of a {unit} of {size}"
                break


def _parts(name: str, entry: Mapping[str, Any], scales: Scales, row_layout: str) -> Iterator[Fault]:
    if scales.data_bytes + scales.bytes != entry["row_bytes"]:
        said = f"{scales.data_bytes} bytes of data and {scales.bytes} of scales"
        yield "layout.json", f"gives {name} {said} in rows of {entry['row_bytes']}"
    strides = scales.data_stride, scales.stride
    whole, apart = (entry["row_bytes"], entry["row_bytes"]), (scales.data_bytes, scales.bytes)
    if strides != (whole if row_layout == "interleaved" else apart):
        yield "layout.json", f"says row_layout {row_layout}, and data and scales of {name} repeat after {strides} bytes"


def _spans(entry: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """First and past-the-end byte of each run that the rows of a region own."""
    rows, scales = entry["rows"], entry.get("scales")
    if scales is None:
        if rows and entry["row_bytes"]:
            yield entry["offset"], entry["offset"] + rows * entry["row_bytes"]
        return
    for row in range(rows):
        data, scale = entry["offset"] + row * scales["data_stride"], scales["offset"] + row * scales["stride"]
        yield data, data + scales["data_bytes"]
        yield scale, scale + scales["bytes"]


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
    """What a region of model_plan.py must say; ``scales`` is None where the entry has none."""
    if entry is None:
        return None
    return {name: entry.get(name) for name in ("offset", "rows", "row_bytes", "format", "scales")}


def short(value: Any) -> str:
    """A value for a sentence, long ones cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
