"""A request whose logits are no distribution ends with an error, and no other request notices."""

from __future__ import annotations

import math

import pytest
import torch
from scripted_model import VOCAB, ScriptedModel, continuation
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.sampling_params import SamplingParams

POISON, LATE = 2, 9
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.01, seed=3, max_tokens=5, ignore_eos=True)
FILTERED = SEEDED.clone(top_k=3, top_p=0.5, min_p=0.1, logprobs=2)
NOT_FINITE = ([math.nan], [math.inf], [-math.inf] * VOCAB)


class PoisonedModel(ScriptedModel):
    """The scripted model, but for ``bad`` in the logits behind the token ``POISON`` and behind position ``LATE``."""

    def __init__(self, bad: list[float]) -> None:
        self.bad = torch.tensor(bad)

    def __call__(self, batch: ForwardBatch, cache: object, output_tokens: Tensor) -> Tensor:
        logits = super().__call__(batch, cache, output_tokens)
        wrong = (batch.input_ids == POISON) | (batch.positions == LATE)
        logits[wrong[output_tokens], : len(self.bad)] = self.bad
        return logits


@pytest.mark.parametrize("params", [GREEDY, SEEDED, FILTERED], ids=["greedy", "drawn", "filtered"])
@pytest.mark.parametrize("bad", NOT_FINITE, ids=["nan", "infinity", "nothing"])
def test_only_the_request_itself_fails(
    bad: list[float],
    params: SamplingParams,
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(llm.llm_engine._worker, "_model", PoisonedModel(bad))
    at_once, late = [5, POISON], [5] * 8  # the second one's third token would stand behind position 9
    first, failed, halted, last = llm.generate([[5], at_once, late, [7, 8]], params, use_tqdm=False)
    for output, prompt in ((first, [5]), (last, [7, 8])):
        assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == (continuation(prompt, 5), "length")
    for output, tokens in ((failed, []), (halted, continuation(late, 2))):
        (completion,) = output.outputs
        assert (completion.token_ids, len(completion.logprobs or [])) == (tokens, len(tokens) if params.logprobs else 0)
        assert (completion.finish_reason, completion.stop_reason) == ("error", "logits_not_finite")
    assert "failed after 2 tokens: the model's logits are not finite" in caplog.text
    assert llm.llm_engine.load().running == 0


def test_all_branches_of_a_prompt_fail(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.llm_engine._worker, "_model", PoisonedModel([math.nan]))
    failed, fine = llm.generate([[5, POISON], [5]], [SEEDED.clone(n=3), SEEDED], use_tqdm=False)
    assert [(c.token_ids, c.finish_reason) for c in failed.outputs] == [([], "error")] * 3
    assert fine.outputs[0].token_ids == continuation([5], 5)
