"""Whether KV that one engine stored can be read by another: every reason against it, by name.

Stored are the block rows of the KV sources and the first part of a state slot. They can be read when the same model
computed them, in the same record formats, at the same places of equal blocks and slots, at the same grain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepinfer_gen.canonical import digest_json, plain
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.sources import EngineView
from deepinfer_gen.codegen.text import number_ranges, write_value
from deepinfer_gen.formula import Value

_Pair = tuple[int, Mapping[str, Any], Mapping[str, Any]]
"""A layer and its region in either engine."""
_MODEL = "model.config."
_NO_EFFECT = (
    "dspark_", "num_nextn_predict_layers", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
    "image_token_id", "initializer_range", "use_cache",
)  # fmt: skip
"""Model config keys that change no cached row: drafting reads the rows, the others are not part of the forward."""
_ROW_KEYS = ("kv.main_format", "kv.index_format", "kv.swa_format", "kv.row_layout")


def unreadable_because(a: EngineView, b: EngineView) -> tuple[str, ...]:
    """The reasons why KV stored by ``a`` cannot be read by ``b``; empty means that it can."""
    return (*_model(a.plan, b.plan), *_keys(a.plan, b.plan), *_sources(a.layout, b.layout), *_state(a.layout, b.layout))


def arithmetic_note(a: Plan, b: Plan) -> str:
    """What the reader of readable rows should know: they were computed in another arithmetic; else empty."""
    old, new = (str(p["numerics.policy"]) for p in (a, b))
    return f"its rows were computed under numerics.policy {old}, not {new}" if old != new else ""


def _model(a: Plan, b: Plan) -> Iterator[str]:
    configs = [_config(p) for p in (a, b)]
    digests = [digest_json({k: plain(v) for k, v in c.items()})[:12] for c in configs]
    if digests[0] != digests[1]:
        keys = [k for k in sorted({*configs[0], *configs[1]}) if configs[0].get(k) != configs[1].get(k)]
        yield f"model: cache-relevant config {digests[0]} is not {digests[1]}; they differ in {', '.join(keys)}"


def _config(plan: Plan) -> dict[str, Value]:
    names = (k for k in plan if k.startswith(_MODEL))
    return {k.removeprefix(_MODEL): plan[k] for k in names if not k.removeprefix(_MODEL).startswith(_NO_EFFECT)}


def _keys(a: Plan, b: Plan) -> Iterator[str]:
    for key in (*_ROW_KEYS, "kv.store_grain"):
        old, new = (p.values[key].value if key in p else None for p in (a, b))
        if old != new:
            kind = "grain" if key == "kv.store_grain" else "row format"
            yield f"{kind}: {key} is {write_value(old)}, not {write_value(new)}"


def _sources(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = ({r["layer"]: r for r in layout["block"]["regions"]} for layout in (a, b))
    if list(ours) != list(theirs):
        yield f"sources: KV source layers are {_list(ours)}, not {_list(theirs)}"
    both = [(layer, ours[layer], theirs[layer]) for layer in ours if layer in theirs]
    for layer, here, there in both:
        if here["ratio"] != there["ratio"]:
            yield f"sources: layer {layer} has one row per {here['ratio']} tokens, not {there['ratio']}"
    if a["block"]["tokens"] != b["block"]["tokens"]:
        yield f"block layout: a block holds {a['block']['tokens']} tokens, not {b['block']['tokens']}"
        return
    for rows in ("main", "index"):
        pairs = [(layer, here[rows], there[rows]) for layer, here, there in both]
        yield from _unequal(pairs, f"block layout: {rows} rows", "row_bytes", "of {} B, not {}")
        yield from _moved(pairs, f"block layout: {rows} rows")


def _state(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = ({r["name"]: r for r in layout["state"]["regions"] if r["stored"]} for layout in (a, b))
    if list(ours) != list(theirs):
        only = sorted(set(ours) ^ set(theirs))
        yield f"stored state: regions differ: {', '.join(only) or 'their order'}"
    pairs = [(ours[n]["layer"], ours[n], theirs[n]) for n in ours if n in theirs]
    yield from _unequal(pairs, "stored state: window rings", "rows", "of {} rows, not {}")
    yield from _unequal(pairs, "stored state: window rows", "row_bytes", "of {} B, not {}")
    yield from _moved(pairs, "stored state: window rings")
    sizes = [layout["state"]["stored_bytes"] for layout in (a, b)]
    if sizes[0] != sizes[1]:
        yield f"stored state: {sizes[0]:,} B are stored, not {sizes[1]:,}"


def _unequal(pairs: Sequence[_Pair], what: str, field: str, sentence: str) -> Iterator[str]:
    """One reason per distinct pair of values of ``field``, with the layers it is about."""
    layers: dict[tuple[int, int], list[int]] = {}
    for layer, here, there in pairs:
        if here[field] != there[field]:
            layers.setdefault((here[field], there[field]), []).append(layer)
    for values, about in layers.items():
        yield f"{what} of layer{'s' if len(about) > 1 else ''} {number_ranges(about)} are {sentence.format(*values)}"


def _moved(pairs: Sequence[_Pair], what: str) -> Iterator[str]:
    """The first place that moved, unless other sizes explain it and were reported."""
    sizes = ("rows", "row_bytes")
    if any(here[size] != there[size] for _, here, there in pairs for size in sizes):
        return
    starts = [(layer, h["offset"], t["offset"]) for layer, h, t in pairs]
    # Another row layout has other strides and is a reason of its own.
    scales = [
        (layer, h["scales"]["offset"], t["scales"]["offset"])
        for layer, h, t in pairs
        if "scales" in h and "scales" in t and h["scales"]["stride"] == t["scales"]["stride"]
    ]
    for places, verb in ((starts, "start"), (scales, "have their scales")):
        moved = [place for place in places if place[1] != place[2]]
        if moved:
            layer, here, there = moved[0]
            more = f", and {len(moved) - 1} more" if len(moved) > 1 else ""
            yield f"{what} of layer {layer} {verb} at {here:,}, not {there:,}{more}"
            return


def _list(layers: Mapping[int, Any]) -> str:
    return write_value(tuple(layers), full=True)
