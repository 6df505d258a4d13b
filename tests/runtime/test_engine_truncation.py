"""Engines with prefill truncation, compiled and run from prompts to tokens, however the prefill is scheduled."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built import shared_cache
from tiny_spec import TINY, TINY_SPEC

from deepinfer_gen import LLM, SamplingParams
from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.write import write_folder

ORACLE = Path(__file__).parents[1] / "oracle"
LENGTHS = (300, 1, 129, 128, 3)
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def compiled(mode: str, parent: Path, changes: Mapping[str, str] | None = None) -> Path:
    """The tiny engine with truncation and other ``changes`` of its text, built."""
    text = TINY_SPEC.read_text()
    for old, new in {"mode: off": f"mode: {mode}", **(changes or {})}.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    spec = parent / "spec.yaml"
    spec.write_text(text)
    folder = write_folder(render(plan_spec(str(spec))), parent / TINY).path
    build_folder(folder, shared_cache())
    return folder


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, list[int]]]:
    with np.load(ORACLE / "reference_f32nq.npz") as data:
        return [{"prompt_token_ids": data[f"p{n}_ids"].tolist()} for n in LENGTHS]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Only the prompt of 300 is longer than the default of 140 kept tokens."""
    with np.load(ORACLE / "reference_f32nq.npz") as full, np.load(ORACLE / "replay_f32nq.npz") as replay:
        first = replay["p300_replay_cut6_keep140_greedy"].tolist()
        return [first, *(full[f"p{n}_greedy"].tolist() for n in LENGTHS[1:])]


def generate(folder: Path, prompts: list[Any], params: Any = GREEDY) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The tokens of each prompt, and the events of the trace."""
    trace = io.StringIO()
    with LLM(engine=folder, trace=trace) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [o.outputs[0].token_ids for o in outputs], [json.loads(line) for line in trace.getvalue().splitlines()]


@pytest.mark.timeout(300)
def test_prompts_of_one_step_give_the_reference_tokens(
    prompts: list[Any], expected: list[list[int]], tmp_path: Path
) -> None:
    tokens, events = generate(compiled("compact", tmp_path), prompts)
    assert tokens == expected
    total = sum(LENGTHS)
    assert (events[0]["kind"], events[0]["rows"], events[0]["total_q"]) == ("prefill", len(LENGTHS), total)
    kept = total - 160
    assert list(events[0]["layer_rows"].values()) == [total] * 6 + [kept] * 4
    assert events[0]["rows_written"]["main.6"] == events[0]["rows_written"]["index.6"] == total
    # Rings hold the last 129 rows of a prompt, before the cut and behind it.
    assert events[0]["rows_written"]["swa.5"] == events[0]["rows_written"]["swa.6"] == 129 + 1 + 129 + 128 + 3
    assert all(set(e["layer_rows"].values()) == {e["graph"]} for e in events[1:])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "chunk"), [("compact", 64), ("compact", 7), ("mask", 64)])
def test_chunks_give_the_same_tokens(
    mode: str, chunk: int, prompts: list[Any], expected: list[list[int]], tmp_path: Path
) -> None:
    folder = compiled(mode, tmp_path, {"max_model_len: 1024": f"max_model_len: 352\n  max_num_batched_tokens: {chunk}"})
    tokens, events = generate(folder, prompts)
    assert tokens == expected
    prefill = [e for e in events if e["kind"] == "prefill"]
    late = [e["layer_rows"]["6"] for e in prefill]
    assert sum(e["layer_rows"]["0"] for e in prefill) == sum(LENGTHS)
    assert sum(late) == sum(LENGTHS) - (160 if mode == "compact" else 0)
    assert (0 in late) == (mode == "compact"), "some chunks keep no row"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_recomputed_request_is_truncated_as_a_longer_prompt(tmp_path: Path) -> None:
    """Two sequences outgrow the blocks; the one that gives way prefills its output too and keeps its last 140."""
    changes = {
        "max_model_len: 1024": "max_model_len: 352",
        "block_size: 32": "block_size: 32\n  num_blocks: 14",
        "zos: off": "zos: off\n  stop_preempted_request: false",
    }
    ids = [{"prompt_token_ids": list(range(start, start + 180))} for start in (3, 203)]
    tokens, events = generate(compiled("compact", tmp_path, changes), ids, GREEDY.clone(max_tokens=80))
    assert [len(t) for t in tokens] == [80, 80]
    first, *again = [e for e in events if e["kind"] == "prefill"]
    assert (first["layer_rows"]["0"], first["layer_rows"]["6"]) == (360, 280)
    assert len(again) == 1
    assert again[0]["layer_rows"]["0"] > 180
    assert again[0]["layer_rows"]["6"] == 140
