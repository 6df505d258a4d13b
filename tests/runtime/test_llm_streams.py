"""Streams of pieces: several at a time, beside other calls, left early, ended elsewhere."""

from __future__ import annotations

import signal
from typing import Any

from scripted_model import continuation, words

from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def generate(llm: LLM, prompt: Any, **changes: Any) -> RequestOutput:
    (output,) = llm.generate(prompt, GREEDY.clone(**changes), use_tqdm=False)
    return output


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def test_streaming_yields_pieces(scripted: LLM) -> None:
    tokens = continuation([5], 8)
    stop = words(tokens[5:7])
    pieces = list(scripted.stream([[5], [6]], [GREEDY.clone(stop=stop, logprobs=0), GREEDY]))
    mine = [p.outputs[0] for p in pieces if p.request_id == pieces[0].request_id]
    assert "".join(c.text for c in mine) == " " + words(tokens[:5]) + " "
    assert [t for c in mine for t in c.token_ids] == tokens[:7]
    assert [len(c.logprobs or []) for c in mine] == [1] * 7
    assert [p.finished for p in pieces].count(True) == 2


def test_a_stream_left_early_ends_its_requests(scripted: LLM) -> None:
    queued = scripted.enqueue([7], GREEDY)
    stream = scripted.stream([[5], [6]], GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert scripted.llm_engine.unfinished_requests() == [int(queued[0])]
    assert [ids(o) for o in scripted.wait_for_completion(use_tqdm=False)] == [continuation([7], 8)]


def test_streams_may_be_read_in_turns(scripted: LLM) -> None:
    first, second = (scripted.stream([[token]], GREEDY) for token in (5, 6))
    pieces: dict[int, list[int]] = {5: [], 6: []}
    for one, other in zip(first, second, strict=True):
        pieces[5] += ids(one)
        pieces[6] += ids(other)
    assert pieces == {5: continuation([5], 8), 6: continuation([6], 8)}


def test_other_calls_inside_a_stream_take_nothing_from_it(scripted: LLM) -> None:
    tokens: list[int] = []
    for number, piece in enumerate(scripted.stream([[5]], GREEDY)):
        tokens += ids(piece)
        if number == 0:
            assert ids(generate(scripted, [7], max_tokens=3)) == continuation([7], 3)
        if number == 1:
            assert scripted.wait_for_completion(use_tqdm=False) == []
    assert tokens == continuation([5], 8)


def test_a_stream_ends_when_its_request_is_aborted_elsewhere(scripted: LLM) -> None:
    stream = scripted.stream([[5]], GREEDY)
    first = next(stream)
    scripted.llm_engine.abort_request([int(first.request_id)])
    assert list(stream) == []


def test_ctrl_c_between_the_pieces_of_a_stream_is_not_held_back(scripted: LLM) -> None:
    stream = scripted.stream([[5]], GREEDY)
    next(stream)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    stream.close()  # type: ignore[attr-defined]
