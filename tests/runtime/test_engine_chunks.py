"""Engines compiled for small prefill budgets: the same tokens, however prompts are cut and blocks are scattered."""

from __future__ import annotations

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

ORACLE = Path(__file__).parents[1] / "oracle" / "reference_f32nq.npz"
LENGTHS = (1, 2, 3, 127, 128, 129, 300)
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def compiled(chunk: int, parent: Path) -> Path:
    """The tiny engine with a prefill step of at most ``chunk`` tokens and no more blocks than its prompts fill."""
    text = TINY_SPEC.read_text()
    changes = {
        f"name: {TINY}": f"name: tiny-chunk-{chunk}",
        "max_model_len: 1024": f"max_model_len: 352\n  max_num_batched_tokens: {chunk}",
        "block_size: 32": "block_size: 32\n  num_blocks: 46",
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    spec = parent / f"chunk-{chunk}.yaml"
    spec.write_text(text)
    folder = write_folder(render(plan_spec(str(spec))), parent / f"tiny-chunk-{chunk}").path
    build_folder(folder, shared_cache())
    return folder


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Any]:
    with np.load(ORACLE) as data:
        return {name: data[name] for n in LENGTHS for name in (f"p{n}_ids", f"p{n}_greedy")}


def watch_tables(llm: LLM) -> list[bool]:
    """Whether each scheduled row's blocks are out of order, from now on."""
    worker = llm.llm_engine._worker
    execute, scattered = worker.execute_model_step, []

    def watched(step: Any, requests: Any, sync: Any) -> Any:
        for table in step.block_table[: step.num_rows]:
            blocks = table[table > 0].astype(np.int64)
            scattered.append(bool((np.diff(blocks) != 1).any()))
        return execute(step, requests, sync)

    worker.execute_model_step = watched  # type: ignore[method-assign]
    return scattered


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", [1, 6, 7, 50, 64])
def test_chunks_and_scattered_blocks(chunk: int, reference: Mapping[str, Any], tmp_path: Path) -> None:
    prompts = [{"prompt_token_ids": reference[f"p{n}_ids"].tolist()} for n in LENGTHS]
    with LLM(engine=compiled(chunk, tmp_path)) as llm:
        # Sequences that grow side by side take and leave their blocks in turn, which shuffles the free list.
        growing = [GREEDY.clone(max_tokens=250 - 10 * i) for i in range(4)]
        llm.generate([{"prompt_token_ids": [5 + i]} for i in range(4)], growing, use_tqdm=False)
        scattered = watch_tables(llm)
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [reference[f"p{n}_greedy"].tolist() for n in LENGTHS]
    assert any(scattered), "no sequence had its blocks out of order"
