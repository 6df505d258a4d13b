"""The offline API on the compiled engine with a scripted model."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from scripted_model import continuation, words

from deepinfer_gen.runtime.engine import EngineError
from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.metrics import Counter, Gauge, Histogram
from deepinfer_gen.runtime.outputs import RequestOutput
from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SEEDED = SamplingParams(temperature=2, max_tokens=12, ignore_eos=True, seed=11)


def generate(llm: LLM, prompt: Any, **changes: Any) -> RequestOutput:
    (output,) = llm.generate(prompt, GREEDY.clone(**changes), use_tqdm=False)
    return output


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


# Prompts and outputs


def test_every_form_of_a_prompt(scripted: LLM) -> None:
    forms: list[Any] = ["w1 w2", {"prompt": "w1 w2"}, {"prompt_token_ids": [0, 5, 7]}, [0, 5, 7]]
    expected = continuation([0, 5, 7], 8)
    assert all(ids(generate(scripted, form)) == expected for form in forms)
    together = scripted.generate(forms, GREEDY, use_tqdm=False)
    assert [ids(o) for o in together] == [expected] * 4
    assert [o.prompt for o in together] == ["w1 w2", "w1 w2", None, None]
    assert together[0].prompt_token_ids == [0, 5, 7]


def test_outputs_come_in_input_order_whatever_ends_first(scripted: LLM) -> None:
    prompts = [[5 + i] for i in range(20)]
    params = [GREEDY.clone(max_tokens=20 - i) for i in range(20)]
    outputs = scripted.generate(prompts, params, use_tqdm=False)
    assert [ids(o) for o in outputs] == [continuation(p, 20 - i) for i, p in enumerate(prompts)]
    assert [o.request_id for o in outputs] == sorted((o.request_id for o in outputs), key=int)


def test_the_fields_of_an_output(scripted: LLM) -> None:
    output = generate(scripted, [5])
    completion = output.outputs[0]
    assert output.finished
    assert completion.finished()
    assert (completion.index, completion.finish_reason, completion.stop_reason) == (0, "length", None)
    assert completion.text == " " + words(continuation([5], 8))
    assert completion.logprobs is None
    assert completion.cumulative_logprob is None
    assert output.num_cached_tokens == 0
    assert output.lora_request is None


def test_metrics_are_always_filled(scripted: LLM) -> None:
    metrics = generate(scripted, [5]).metrics
    assert metrics.num_generation_tokens == 8
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.queued_ts > 0
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts
    assert metrics.arrival_time > 1e9


def test_a_long_prompt_is_prefilled_in_chunks_and_gives_the_same(scripted: LLM) -> None:
    prompt = [3 + i % 400 for i in range(1000)]
    outputs = scripted.generate([prompt] * 15, GREEDY, use_tqdm=False)
    assert all(ids(o) == continuation(prompt, 8) for o in outputs)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], None),
        ("", None),
        ({"prompt_token_ids": []}, "prompt 0 is empty"),
        ([512], "outside the vocabulary of 512"),
        ([[5], [-1]], "prompt 1 has token ids outside"),
        ({"prompt": "w1", "multi_modal_data": 1}, "multi_modal_data"),
        ([3.5], "neither text nor token ids"),
        ([[3.5]], "no list of integers"),
        ([[True, 3]], "no list of integers"),
        ({"prompt_token_ids": "12"}, "no list of integers"),
        ([["3"]], "no list of integers"),
        (b"ab", "no list of integers"),
        ({"prompt": 5, "prompt_token_ids": [3]}, "neither text nor token ids"),
        ("w1 \ud800", "surrogate"),
        (None, "got NoneType"),
        (7, "got int"),
        ({}, "neither text nor token ids"),
        ([3] * 1024, "1024"),
    ],
)
def test_prompts_that_cannot_be_used(scripted: LLM, prompt: Any, message: str | None) -> None:
    if message is None:  # no prompts, and a text that is BOS alone
        assert len(scripted.generate(prompt, GREEDY, use_tqdm=False)) == (prompt == "")
        return
    with pytest.raises(ParameterError, match=message):
        scripted.generate(prompt, GREEDY, use_tqdm=False)
    assert not scripted.llm_engine.has_unfinished_requests()


def test_params_must_pair_with_prompts(scripted: LLM) -> None:
    for wrong in (5, {"max_tokens": 3}, [None]):
        with pytest.raises(ParameterError, match="sampling_params must be"):
            scripted.generate([[5]], wrong, use_tqdm=False)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="2 prompts need"):
        scripted.generate([[5], [6]], [GREEDY], use_tqdm=False)


def test_arguments_without_meaning_are_refused(scripted: LLM) -> None:
    for name in ("lora_request", "priority", "tokenization_kwargs", "mm_processor_kwargs"):
        with pytest.raises(ParameterError, match=name):
            scripted.generate([5], GREEDY, **{name: 1})
        with pytest.raises(ParameterError, match=name):
            scripted.enqueue([5], GREEDY, **{name: 1})
    assert not scripted.llm_engine.has_unfinished_requests()


# Ends


def test_a_stop_id_ends_the_output_and_is_no_text(scripted: LLM) -> None:
    tokens = continuation([5], 8)
    completion = generate(scripted, [5], stop_token_ids=[tokens[3]]).outputs[0]
    assert completion.token_ids == tokens[:4]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", tokens[3])
    assert completion.text == " " + words(tokens[:3])
    kept = generate(scripted, [5], stop_token_ids=[tokens[3]], include_stop_str_in_output=True).outputs[0]
    assert kept.text == " " + words(tokens[:4])


def test_the_end_token_has_no_stop_reason_and_may_be_ignored(scripted: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = continuation([5], 8)
    engine = scripted.llm_engine
    monkeypatch.setattr(engine, "_eos_token_id", tokens[2])
    monkeypatch.setattr(engine._outputs, "_eos_token_id", tokens[2])
    completion = generate(scripted, [5], ignore_eos=False).outputs[0]
    assert completion.token_ids == tokens[:3]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert ids(generate(scripted, [5])) == tokens
    named = generate(scripted, [5], stop_token_ids=[tokens[2]]).outputs[0]
    assert (named.token_ids, named.stop_reason) == (tokens[:3], tokens[2])


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_output(scripted: LLM, include: bool) -> None:
    tokens = continuation([5], 8)
    text = " " + words(tokens)
    stop = words(tokens[2:4])
    completion = generate(scripted, [5], stop=["never", stop], include_stop_str_in_output=include).outputs[0]
    assert completion.token_ids == tokens[:4]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    end = text.index(stop) + (len(stop) if include else 0)
    assert completion.text == text[:end]


def test_a_stop_string_in_the_last_possible_token_counts(scripted: LLM) -> None:
    tokens = continuation([5], 4)
    completion = generate(scripted, [5], stop=words(tokens[3:]), max_tokens=4).outputs[0]
    assert (completion.finish_reason, completion.token_ids) == ("stop", tokens)


def test_min_tokens_keeps_ends_away(scripted: LLM) -> None:
    tokens = continuation([5], 8)
    by_id = generate(scripted, [5], stop_token_ids=[tokens[1]], min_tokens=2).outputs[0]
    assert by_id.token_ids[1] == tokens[1] + 1
    by_text = generate(scripted, [5], stop=words(tokens[1:2]), min_tokens=5).outputs[0]
    assert by_text.finish_reason == "length"


def test_max_tokens_none_runs_to_the_longest_sequence(scripted: LLM) -> None:
    prompt = [5] * 1000
    completion = generate(scripted, prompt, max_tokens=None).outputs[0]
    assert (len(completion.token_ids), completion.finish_reason) == (24, "length")
    assert len(ids(generate(scripted, prompt, max_tokens=100))) == 24


def test_a_cut_by_the_default_is_announced_once(
    scripted: LLM, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("deepinfer_gen"), "propagate", True)
    default = SamplingParams(temperature=0, ignore_eos=True)
    for params in (GREEDY, default, default):
        scripted.generate([5], params, use_tqdm=False)
    assert caplog.text.count("default of max_tokens=16") == 1


def test_text_is_optional(scripted: LLM) -> None:
    completion = generate(scripted, [5], detokenize=False, logprobs=1).outputs[0]
    assert completion.text == ""
    assert completion.logprobs is not None
    assert completion.logprobs[0][completion.token_ids[0]].decoded_token is None


# Sampling


def test_logprobs(scripted: LLM) -> None:
    completion = generate(scripted, [5], temperature=2, seed=1, logprobs=2, max_tokens=20).outputs[0]
    assert completion.logprobs is not None
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert len(entry) == (2 if entry[token].rank in (1, 2) else 3)
        assert entry[token].decoded_token == words([token])
        assert sorted(p.rank for p in entry.values() if p.rank is not None)[:2] == [1, 2]
    assert len(generate(scripted, [5], logprobs=-1).outputs[0].logprobs or []) == 8
    assert len((generate(scripted, [5], logprobs=-1, max_tokens=1).outputs[0].logprobs or [{}])[0]) == 512


def test_a_seed_fixes_the_output_whatever_else_runs(scripted: LLM) -> None:
    (alone,) = scripted.generate([9], SEEDED, use_tqdm=False)
    others = [SamplingParams(temperature=1.5, max_tokens=9), GREEDY, SEEDED.clone(seed=12)]
    batch = scripted.generate([[9], [8], [7], [6]], [SEEDED, *others], use_tqdm=False)
    assert ids(alone) == ids(batch[0])
    assert ids(alone) != continuation([9], 12)


def test_equal_seeds_in_one_call_give_different_outputs(scripted: LLM) -> None:
    first, second = scripted.generate([[9], [9]], SEEDED, use_tqdm=False)
    assert ids(first) != ids(second)
    again = scripted.generate([[9], [9]], SEEDED, use_tqdm=False)
    assert [ids(o) for o in again] == [ids(first), ids(second)]


def test_unseeded_requests_differ(scripted: LLM) -> None:
    outputs = scripted.generate([[9]] * 4, SEEDED.clone(seed=None), use_tqdm=False)
    assert len({tuple(ids(o)) for o in outputs}) == 4


# Queueing, streaming, interruption


def test_enqueued_requests_wait_and_mix_with_others(scripted: LLM) -> None:
    queued = scripted.enqueue([[5], [6]], GREEDY.clone(max_tokens=3))
    assert len(scripted.llm_engine.unfinished_requests()) == 2
    assert ids(generate(scripted, [7], max_tokens=9)) == continuation([7], 9)
    queued += scripted.enqueue([8], GREEDY)
    outputs = scripted.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [o.request_id for o in outputs] == queued
    assert [ids(o) for o in outputs] == [continuation([5], 3), continuation([6], 3), continuation([8], 8)]
    assert scripted.wait_for_completion(use_tqdm=False) == []
    with pytest.raises(ParameterError, match="RequestOutput"):
        scripted.wait_for_completion(int, use_tqdm=False)  # type: ignore[arg-type]


def test_a_forked_child_is_told_to_make_its_own_engine(scripted: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="make one in the child"):
            generate(scripted, [5])
    assert ids(generate(scripted, [5])) == continuation([5], 8)


def test_abort(scripted: LLM) -> None:
    first, second = (int(i) for i in scripted.enqueue([[5], [6]], GREEDY))
    scripted.llm_engine.step()
    (aborted,) = scripted.llm_engine.abort_request([first, 10**9])
    assert (aborted.outputs[0].finish_reason, ids(aborted)) == ("abort", continuation([5], 1))
    (other,) = scripted.wait_for_completion(use_tqdm=False)
    assert (other.request_id, ids(other)) == (str(second), continuation([6], 8))


def test_everything_is_given_back(scripted: LLM) -> None:
    generate(scripted, [5])
    load = scripted.llm_engine.load()
    assert (load.running, load.waiting, load.cache_usage, load.slot_usage) == (0, 0, 0.0, 0.0)


def test_ctrl_c_ends_between_steps_and_leaves_the_engine_usable(scripted: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = scripted.llm_engine.step
    calls = []

    def interrupted_step() -> list[RequestOutput]:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    monkeypatch.setattr(scripted.llm_engine, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        generate(scripted, [5], max_tokens=100)
    assert len(calls) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not scripted.llm_engine.has_unfinished_requests()
    assert ids(generate(scripted, [5])) == continuation([5], 8)


# Inspection


def test_progress_bar(scripted: LLM) -> None:
    made: list[Any] = []

    class Bar:
        def __init__(self, **arguments: Any) -> None:
            self.arguments, self.count, self.closed, self.postfix = arguments, 0, False, ""
            self.format_dict = {"elapsed": 2.0}
            made.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def close(self) -> None:
            self.closed = True

    scripted.generate([[5], [6, 7]], GREEDY, use_tqdm=Bar)
    (bar,) = made
    assert bar.arguments["total"] == 2
    assert bar.arguments["desc"] == "Processed prompts"
    assert (bar.count, bar.closed) == (2, True)
    assert bar.postfix == "est. speed input: 1.50 toks/s, output: 8.00 toks/s"


def test_metrics(scripted: LLM) -> None:
    before = {m.name: m for m in scripted.get_metrics()}
    generate(scripted, [5, 6, 7])
    after = {m.name: m for m in scripted.get_metrics()}

    def grown(name: str) -> int:
        old, new = before.get(name), after[name]
        assert isinstance(new, Counter)
        return new.value - (old.value if isinstance(old, Counter) else 0)

    assert grown("deepinfer:prompt_tokens") == 3
    assert grown("deepinfer:generation_tokens") == 8
    assert grown("deepinfer:prefill_steps") == 1
    assert grown("deepinfer:decode_steps") == 7
    assert isinstance(after["deepinfer:num_requests_running"], Gauge)
    latency = after["deepinfer:time_to_first_token_seconds"]
    assert isinstance(latency, Histogram)
    assert latency.buckets["+Inf"] == latency.count > 0


def test_profile(scripted: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted._profiler, "_folder", tmp_path)
    scripted.start_profile("run", delay_iterations=1, max_iterations=2)
    with pytest.raises(RuntimeError, match="already"):
        scripted.start_profile()
    generate(scripted, [5])
    (trace,) = tmp_path.glob("run_rank0_*.json")
    assert '"forward"' in trace.read_text()
    scripted.stop_profile()


def test_small_questions(scripted: LLM) -> None:
    assert scripted.get_world_size() == 1
    assert scripted.get_default_sampling_params() == SamplingParams()
    assert scripted.get_tokenizer().eos_token_id == 1
    assert "Layer" in repr(scripted)
    with pytest.raises(NotImplementedError, match="no prefix cache"):
        scripted.reset_prefix_cache()


def test_chat(scripted: LLM) -> None:
    template = "{{ bos_token }} {{ messages[0].content }}"
    messages = [{"role": "user", "content": [{"type": "text", "text": "w1 w2"}]}]
    (output,) = scripted.chat(messages, GREEDY, use_tqdm=False, chat_template=template)
    assert output.prompt_token_ids == [0, 5, 7]
    assert ids(output) == continuation([0, 5, 7], 8)
    assert len(scripted.chat([messages, messages], GREEDY, False, chat_template=template)) == 2
    with pytest.raises(ParameterError, match="text only"):
        scripted.chat([{"role": "user", "content": [{"type": "image_url"}]}], GREEDY, False, chat_template=template)
    with pytest.raises(Exception, match="no chat template"):
        scripted.chat(messages, GREEDY, False)
