"""A PROMPT engine yields the first token of each request, the one that a NORMAL engine of the same model yields."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from built import shared_cache
from tiny_spec import TINY_SPEC

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def prompt_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompt")
    text = TINY_SPEC.read_text()
    changed = text.replace("type: NORMAL", "type: PROMPT").replace("  verify: fixed\n", "")
    (folder / "prompt.yaml").write_text(changed)
    written = write_folder(render(plan_spec(str(folder / "prompt.yaml"))), folder / "prompt").path
    build_folder(written, shared_cache())
    return written


def test_one_token_for_each_request(llm: LLM, prompt_engine: Path, caplog: pytest.LogCaptureFixture) -> None:
    # More prompts than places, some longer than a block, one longer than the others together.
    prompts = [[3 + (5 * i + j) % 400 for j in range(1 + 3 * i)] for i in range(40)] + [[9] * 700]
    params = SamplingParams(temperature=0, ignore_eos=True)
    expected = llm.generate(prompts, params.clone(max_tokens=1), use_tqdm=False)
    with LLM(engine=prompt_engine) as engine, caplog.at_level(logging.WARNING):
        for _ in range(2):  # the second call begins where the first one ended
            outputs = engine.generate(prompts, params, use_tqdm=False)
            assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]
            assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
    assert not caplog.records, "nothing was cut by a default"
