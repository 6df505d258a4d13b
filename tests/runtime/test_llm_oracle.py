"""The compiled engine with the shipped checkpoint against the independent numeric reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.sampling_params import SamplingParams

ORACLE = Path(__file__).parents[1] / "oracle" / "reference_f32nq.npz"
LENGTHS = (1, 2, 3, 127, 128, 129, 300)
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Any]:
    with np.load(ORACLE) as data:
        return {name: data[name] for n in LENGTHS for name in (f"p{n}_ids", f"p{n}_greedy", f"p{n}_greedy_logits")}


def prompt(reference: Mapping[str, Any], length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": reference[f"p{length}_ids"].tolist()}


@pytest.mark.parametrize("length", [3, 129, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 127, 128, 300))])
def test_each_prompt_alone(llm: LLM, reference: Mapping[str, Any], length: int) -> None:
    (output,) = llm.generate(prompt(reference, length), GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == reference[f"p{length}_greedy"].tolist()
    assert output.outputs[0].finish_reason == "length"


def test_all_prompts_in_one_batch_with_logprobs(llm: LLM, reference: Mapping[str, Any]) -> None:
    params = [GREEDY.clone(logprobs=1 if n == 129 else None) for n in LENGTHS]
    outputs = llm.generate([prompt(reference, n) for n in LENGTHS], params, use_tqdm=False)
    for length, output in zip(LENGTHS, outputs, strict=True):
        assert output.outputs[0].token_ids == reference[f"p{length}_greedy"].tolist()
    logits = reference["p129_greedy_logits"].astype(np.float64)
    expected = logits.max(-1) - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) - logits.max(-1)
    completion = outputs[LENGTHS.index(129)].outputs[0]
    assert completion.logprobs is not None
    seen = [entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    np.testing.assert_allclose(seen[: len(expected)], expected, atol=1e-4)
    assert completion.cumulative_logprob == pytest.approx(sum(seen))
