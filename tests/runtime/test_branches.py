"""``n`` > 1: branches share the cache of their prompt until they write, and each draws numbers of its own."""

from __future__ import annotations

import pytest
from scripted_model import continuation, words

from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.sampling_params import SamplingParams

SEEDED = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True, seed=7)
PLACES = 16  # max_num_seqs of the tiny engine


def generate(llm: LLM, prompt: list[int], params: SamplingParams) -> RequestOutput:
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output


def branches(output: RequestOutput) -> list[list[int]]:
    assert output.finished
    assert [completion.index for completion in output.outputs] == list(range(len(output.outputs)))
    return [completion.token_ids for completion in output.outputs]


def test_branches_differ_and_come_back_with_the_same_seed(llm: LLM) -> None:
    first = branches(generate(llm, [5, 9, 11], SEEDED.clone(n=4)))
    assert len({tuple(tokens) for tokens in first}) == 4
    assert branches(generate(llm, [5, 9, 11], SEEDED.clone(n=4))) == first
    assert branches(generate(llm, [5, 9, 11], SEEDED)) == first[:1]


@pytest.mark.parametrize("length", [1, 32, 63, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 31, 33, 64, 65))])
def test_every_branch_reads_the_cache_of_the_whole_prompt(llm: LLM, length: int) -> None:
    # Blocks hold 32 tokens. With one candidate a branch follows the model's best token, as greedy decoding does.
    prompt = [3 + (7 * i) % 400 for i in range(length)]
    (greedy,) = branches(generate(llm, prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)))
    forked = branches(generate(llm, prompt, SEEDED.clone(n=3, top_k=1, max_tokens=40)))
    assert forked == [greedy] * 3


def test_branches_share_blocks_and_copy_the_last_one(scripted: LLM) -> None:
    copies: list[tuple[int, int]] = []
    worker = scripted.llm_engine._worker
    copy_state = worker.copy_state
    worker.copy_state = lambda step: (  # type: ignore[method-assign]
        copies.append((len(step.clone_blocks), len(step.clone_states))),
        copy_state(step),
    )[1]
    try:
        generate(scripted, [5] * 40, SEEDED.clone(n=4))
    finally:
        del worker.copy_state  # type: ignore[method-assign]
    # The last one to write keeps block and slot.
    assert [pair for pair in copies if any(pair)] == [(3, 3)]


def test_branches_without_a_place_compute_the_prompt_again(llm: LLM) -> None:
    many = branches(generate(llm, [5, 9, 11], SEEDED.clone(n=PLACES + 4)))
    assert len(many) == PLACES + 4
    assert many[:4] == branches(generate(llm, [5, 9, 11], SEEDED.clone(n=4)))
    # Beside a full engine all but the first branch begin late; their tokens are the same.
    others = [[7, i] for i in range(PLACES - 1)]
    params = [SEEDED.clone(n=PLACES + 4), *(SEEDED.clone(seed=i, max_tokens=30) for i in range(PLACES - 1))]
    crowded = llm.generate([[5, 9, 11], *others], params, use_tqdm=False)[0]
    assert branches(crowded) == many
    assert llm.llm_engine.load().running == 0


def test_a_stream_tells_the_branches_apart(scripted: LLM) -> None:
    whole = branches(generate(scripted, [5, 9], SEEDED.clone(n=3)))
    streamed: dict[int, list[int]] = {0: [], 1: [], 2: []}
    finished = []
    for piece in scripted.stream([[5, 9]], SEEDED.clone(n=3)):
        (completion,) = piece.outputs
        streamed[completion.index] += completion.token_ids
        finished.append(piece.finished)
    assert [streamed[i] for i in range(3)] == whole
    assert finished[-1]
    assert not any(finished[:-1])


def test_branches_end_each_for_their_own_reason(scripted: LLM) -> None:
    stops = [tokens[3] for tokens in branches(generate(scripted, [5, 9], SEEDED.clone(n=2)))]
    output = generate(scripted, [5, 9], SEEDED.clone(n=2, stop_token_ids=stops[:1]))
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason == stops[0]
    assert output.metrics.num_generation_tokens == sum(len(c.token_ids) for c in output.outputs)


def test_a_stop_string_may_end_all_branches_in_one_step(scripted: LLM) -> None:
    tokens = continuation([5, 9], 3)
    output = generate(scripted, [5, 9], SEEDED.clone(n=3, top_k=1, stop=[words(tokens[2:])]))
    assert branches(output) == [tokens] * 3
    assert [(c.finish_reason, c.text) for c in output.outputs] == [("stop", f" {words(tokens[:2])} ")] * 3
    assert not scripted.llm_engine.has_unfinished_requests()


def test_an_abort_ends_all_branches(scripted: LLM) -> None:
    engine = scripted.llm_engine
    (waiting,) = scripted.enqueue([[5, 9]], SEEDED.clone(n=3, top_k=1))
    (unborn,) = engine.abort_request([int(waiting)])
    assert [c.finish_reason for c in unborn.outputs] == ["abort"] * 3
    (running,) = scripted.enqueue([[5, 9]], SEEDED.clone(n=3, top_k=1))
    for _ in range(3):
        engine.step()
    (ended,) = engine.abort_request([int(running)])
    assert [c.finish_reason for c in ended.outputs] == ["abort"] * 3
    assert all(c.token_ids == continuation([5, 9], len(c.token_ids)) for c in ended.outputs)
    assert not engine.has_unfinished_requests()
