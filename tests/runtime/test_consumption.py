"""The generated files are consumed: a folder changed on purpose, re-signed and built runs as it now says.

Moving a state region, leaving out a graph size or changing a kernel's tile give the same tokens and a trace that shows
the change; another KV source of one layer changes the logits.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from built import build_tiny, shared_cache
from resign import Edit, replace_once, resign
from tiny_spec import TINY
from torch import Tensor

from deepinfer_gen import LLM, SamplingParams
from deepinfer_gen.canonical import json_text
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.runtime import assembly
from deepinfer_gen.runtime.kernels.reference import kv_scatter, sparse_attention
from deepinfer_gen.runtime.kv_cache import KVCache

PROMPTS = [[0, *range(40, 75)], [0, 193, 407], [0, *range(300, 171, -1)]]
"""36, 3 and 130 tokens: an odd one leaves half a pair in the accumulators, the longest runs around its rings."""


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine did.

    Per prompt its tokens, and the likeliest 20 of the first one with their logprobs; the events of its trace; which
    bytes of a state slot any sequence wrote (bool[slot_bytes]); the tile sizes that attention ran with.
    """

    tokens: list[list[int]]
    first: list[dict[int, float]]
    events: list[dict[str, Any]]
    written: Tensor
    tiles: set[int]


def run(folder: Path) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        return _run(folder, patch)


def _run(folder: Path, patch: pytest.MonkeyPatch) -> Run:
    caches: list[KVCache] = []
    sizes: set[int] = set()
    attend = sparse_attention.sparse_attention

    def recorded_cache(*args: Any) -> KVCache:
        caches.append(KVCache(*args))
        return caches[-1]

    def recorded_attention(*args: Any, queries: int, **rest: Any) -> Tensor:
        sizes.add(queries)
        return attend(*args, queries=queries, **rest)

    patch.setattr(assembly, "KVCache", recorded_cache)
    patch.setattr(sparse_attention, "sparse_attention", recorded_attention)
    trace = io.StringIO()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=20)
    with LLM(engine=folder, trace=trace) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    logprobs = [c.logprobs[0] for c in completions if c.logprobs]
    first = [{token: entry.logprob for token, entry in one.items()} for one in logprobs]
    events = [json.loads(line) for line in trace.getvalue().splitlines()]
    (cache,) = caches
    return Run([list(c.token_ids) for c in completions], first, events, (cache.slots[1:] != 0).any(dim=0), sizes)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def original(shipped: Path) -> Run:
    return run(shipped)


@pytest.fixture
def changed(shipped: Path, tmp_path: Path) -> Callable[[Mapping[str, Edit]], Run]:
    """Run a copy of the folder that was edited, re-signed and built."""

    def apply(edits: Mapping[str, Edit]) -> Run:
        folder = Path(shutil.copytree(shipped, tmp_path / TINY))
        resign(folder, edits)
        build_folder(folder, shared_cache())
        return run(folder)

    return apply


def json_edit(change: Callable[[Any], None]) -> Edit:
    def edit(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json_text(content)

    return edit


def chain(*edits: Edit) -> Edit:
    def edit(text: str) -> str:
        for one in edits:
            text = one(text)
        return text

    return edit


def same_tokens(one: Run, other: Run) -> bool:
    return one.tokens == other.tokens and all(len(t) == 12 for t in one.tokens)


def fixed_part(events: list[dict[str, Any]], *without: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in event.items() if k not in without} for event in events]


def test_a_moved_state_region_is_where_the_engine_keeps_it(
    original: Run, changed: Callable[[Mapping[str, Edit]], Run]
) -> None:
    """Layer 9's ring and the accumulators behind it move by 128 bytes, and the slot grows by as much."""
    rings = {"swa.9": 297_216, "ca_state.2": 330_240, "ca_state.4": 331_264}
    moved = {*rings, "ica_state.2", "ica_state.4"}

    def layout(content: Any) -> None:
        for region in content["state"]["regions"]:
            region["offset"] += 128 if region["name"] in moved else 0
        content["state"]["slot_bytes"] += 128
        content["state"]["dropped_bytes"] += 128

    run_moved = changed(
        {
            "layout.json": json_edit(layout),
            "engine_config.hpp": chain(
                replace_once("kSlotBytes = 332'288;", "kSlotBytes = 332'416;"),
                replace_once("kDroppedBytes = 134'144;", "kDroppedBytes = 134'272;"),
                replace_once("StateRegion{297'216, 33'024}", "StateRegion{297'344, 33'024}"),
                replace_once("StateRegion{330'240, 1024}", "StateRegion{330'368, 1024}"),
                replace_once("StateRegion{331'264, 1024}", "StateRegion{331'392, 1024}"),
                lambda text: text.replace("StateRegion{332'288, 0}", "StateRegion{332'416, 0}"),
            ),
            "model_plan.py": chain(
                *(replace_once(f"(offset={old},", f"(offset={old + 128},") for old in rings.values())
            ),
        }
    )
    assert same_tokens(run_moved, original)
    before, after = (r.events[0]["regions"]["state"] for r in (original, run_moved))
    assert {name: after[name] - before[name] for name in before if after[name] != before[name]} == dict.fromkeys(
        moved, 128
    )
    assert original.written[297_216:297_344].any(), "the ring of layer 9 began here"
    assert not run_moved.written[297_216:297_344].any(), "the hole that it left stays untouched"
    assert torch.equal(run_moved.written[297_344:], original.written[297_216:])
    assert fixed_part(run_moved.events, "regions") == fixed_part(original.events, "regions")


def test_a_graph_size_that_is_left_out_is_not_replayed(
    original: Run, changed: Callable[[Mapping[str, Edit]], Run]
) -> None:
    """Without size 4 three rows decode in the graph of 8."""

    def graphs(content: Any) -> None:
        content["graphs"] = [g for g in content["graphs"] if g["size"] != 4]
        content["lookup"] = [i - 1 if i > 2 else i for i in content["lookup"]]

    without = changed(
        {
            "graphs.json": json_edit(graphs),
            "engine_config.hpp": chain(
                replace_once(
                    "std::int32_t, 5> kGraphSizes = {1, 2, 4, 8, 16}", "std::int32_t, 4> kGraphSizes = {1, 2, 8, 16}"
                ),
                replace_once(
                    "std::int32_t, 5> kGraphRows = {8, 9, 11, 15, 23}", "std::int32_t, 4> kGraphRows = {8, 9, 15, 23}"
                ),
            ),
        }
    )
    assert same_tokens(without, original)
    used = [[(e["graph"], e["graph_rows"]) for e in r.events if e["kind"] == "decode"] for r in (original, without)]
    assert set(used[0]) == {(4, 11)}
    assert set(used[1]) == {(8, 15)}
    # Padding fills the graph and is computed and stored (in block 0 and slot 0) like any row.
    assert {tuple(e["layer_rows"].values()) for e in without.events if e["kind"] == "decode"} == {(8,) * 10}
    padded = ("graph", "graph_rows", "layer_rows", "rows_written")
    assert fixed_part(without.events, *padded) == fixed_part(original.events, *padded)


def test_a_changed_tile_is_what_the_operator_runs_with(
    original: Run, changed: Callable[[Mapping[str, Edit]], Run]
) -> None:
    """Attention takes 7 queries at a time instead of 256."""

    def kernels(content: Any) -> None:
        content["kernels"]["sparse_attention"]["tile"] = {"queries": 7}

    def python(text: str) -> str:
        pattern = re.compile(r'("sparse_attention": KernelConfig\(.*?tile=\{"queries": )256(\})', re.DOTALL)
        edited, count = pattern.subn(r"\g<1>7\g<2>", text)
        assert count == 1
        return edited

    tiled = changed({"kernels.json": json_edit(kernels), "kernels.py": python})
    assert same_tokens(tiled, original)
    assert (original.tiles, tiled.tiles) == ({256}, {7})
    shown = [{e["kernels"]["sparse_attention"]["tile"]["queries"] for e in r.events} for r in (original, tiled)]
    assert shown == [{256}, {7}]
    assert fixed_part(tiled.events, "kernels") == fixed_part(original.events, "kernels")


@pytest.mark.long
def test_another_implementation_is_what_stores_the_rows(
    original: Run, changed: Callable[[Mapping[str, Edit]], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TileLang's kernel, compiled for the CPU, stores every row; the reference none."""

    def kernels(content: Any) -> None:
        content["kernels"]["kv_scatter"]["implementation"] = "tilelang_cpu"

    def python(text: str) -> str:
        old = 'name="kv_scatter",\n        implementation="'
        return replace_once(f'{old}reference"', f'{old}tilelang_cpu"')(text)

    monkeypatch.setattr(kv_scatter, "kv_scatter", None)
    tilelang = changed({"kernels.json": json_edit(kernels), "kernels.py": python})
    assert same_tokens(tilelang, original)
    assert tilelang.first == original.first
    assert torch.equal(tilelang.written, original.written)
    assert {e["kernels"]["kv_scatter"]["implementation"] for e in tilelang.events} == {"tilelang_cpu"}


def test_another_kv_source_of_one_layer_changes_the_logits(
    original: Run, changed: Callable[[Mapping[str, Edit]], Run]
) -> None:
    """Layer 5 reads the rows of layer 2 instead of layer 4; layout.json names it as that alias."""

    def layout(content: Any) -> None:
        (alias,) = (a for a in content["block"]["aliases"] if a["layer"] == 5)
        alias["of"] = 2

    def model(text: str) -> str:
        head, layer, tail = re.split(r"(            index=5,\n.*?\n        \),\n)", text, flags=re.DOTALL)
        edits = (("kv_source=4", "kv_source=2"), ("main=Region(offset=6144", "main=Region(offset=0"),
                 ("index_keys=Region(offset=10240", "index_keys=Region(offset=4096"))  # fmt: skip
        return head + chain(*(replace_once(*e) for e in edits))(layer) + tail

    other = changed({"layout.json": json_edit(layout), "model_plan.py": model})
    for before, after in zip(original.first, other.first, strict=True):
        common = set(before) & set(after)
        assert max(abs(before[t] - after[t]) for t in common) > 1e-3, "the first logits move far beyond rounding"


def test_the_trace_shows_the_folder_as_generated(shipped: Path, original: Run) -> None:
    layout = json.loads((shipped / "layout.json").read_text(encoding="utf-8"))
    state = {region["name"]: region["offset"] for region in layout["state"]["regions"]}
    assert [e["kind"] for e in original.events] == ["prefill"] + ["decode"] * 11
    assert all(e["regions"]["state"] == state and e["rows"] == len(PROMPTS) for e in original.events)
