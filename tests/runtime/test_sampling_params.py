"""SamplingParams keeps vLLM's fields, defaults and ranges, and refuses what it cannot do."""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_gen.runtime.sampling_params import ParameterError, RequestOutputKind, SamplingParams

OUT_OF_RANGE = [
    ("n", 0),
    ("n", 1.5),
    ("n", 16_385),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", math.nan),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.0),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("logprobs", -2),
    ("seed", 2**64),
    ("seed", "7"),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop_token_ids", [1.5]),
    ("stop_token_ids", [-1]),
    ("stop", 5),
    ("stop", [5]),
    ("stop_token_ids", 5),
    ("stop_token_ids", [[1]]),
    ("stop_token_ids", "12"),
    ("ignore_eos", "yes"),
    ("detokenize", None),
    ("skip_special_tokens", 1),
    ("include_stop_str_in_output", "no"),
    ("output_kind", 2),
]
UNSUPPORTED: list[tuple[str, Any]] = [
    ("presence_penalty", 0.5),
    ("frequency_penalty", 0.5),
    ("repetition_penalty", 1.1),
    ("watermarking", True),
    ("prompt_logprobs", 1),
    ("prompt_logprob_token_ids", [[1]]),
    ("prompt_logprob_start", 0),
    ("logprob_token_ids", [1]),
    ("flat_logprobs", True),
    ("spaces_between_special_tokens", False),
    ("stream_interval", 2),
    ("skip_clone", True),
    ("structured_outputs", {"json": "{}"}),
    ("logit_bias", {1: 2.0}),
    ("allowed_token_ids", [1]),
    ("extra_args", {"a": 1}),
    ("bad_words", ["a"]),
    ("skip_reading_prefix_cache", True),
    ("thinking_token_budget", 5),
    ("repetition_detection", object()),
    ("routed_experts_prompt_start", 1),
    ("trace_decode_token_ids", [1]),
]
SUPPORTED = {
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens",
    "min_tokens", "n",
    "logprobs", "detokenize", "skip_special_tokens", "include_stop_str_in_output", "output_kind", "seq_seed",
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_an_unsupported_field_is_refused_and_never_ignored(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        SamplingParams(**{name: value})
    assert (caught.value.parameter, caught.value.value) == (name, value)


def test_every_field_is_either_supported_or_refused() -> None:
    assert {f.name for f in fields(SamplingParams)} == SUPPORTED | {name for name, _ in UNSUPPORTED}


def test_unsupported_fields_are_accepted_at_their_defaults() -> None:
    defaults = {f.name: f.default for f in fields(SamplingParams)}
    assert SamplingParams(**defaults) == SamplingParams()


def test_greedy_resets_the_filters() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert params.greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_greedy_refuses_several_outputs() -> None:
    with pytest.raises(ParameterError, match="greedy"):
        SamplingParams(temperature=0, n=2)


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert SamplingParams(temperature=0.001).temperature == 0.01
    assert "0.001" in caplog.text


def test_normal_forms() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[3, 3, 1], seed=-1, top_k=-1, logprobs=True)
    assert params.stop == ["x"]
    assert params.stop_token_ids == [3, 1]
    assert params.seed is None
    assert params.logprobs == 1


def test_stop_strings_need_text() -> None:
    with pytest.raises(ParameterError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_seq_seed_is_another_name_of_seed() -> None:
    assert SamplingParams(seq_seed=5).seed == 5
    assert SamplingParams(seed=5, seq_seed=5).clone().seed == 5
    with pytest.raises(ParameterError, match="5 and 6"):
        SamplingParams(seed=5, seq_seed=6)


def test_the_default_of_max_tokens_is_known_as_such() -> None:
    assert SamplingParams().max_tokens == 16
    assert SamplingParams().max_tokens_is_default
    assert SamplingParams().clone().max_tokens_is_default
    assert not SamplingParams(max_tokens=16).max_tokens_is_default


def test_clone_shares_nothing_and_validates_what_was_set_later() -> None:
    params = SamplingParams(stop=["a"])
    copy = params.clone(output_kind=RequestOutputKind.DELTA)
    copy.stop.append("b")  # type: ignore[union-attr]
    assert params.stop == ["a"]
    params.top_p = 2.0
    with pytest.raises(ParameterError, match="top_p"):
        params.clone()


@given(
    temperature=st.floats(0.01, 2),
    top_p=st.floats(0.001, 1),
    top_k=st.integers(-1, 1000),
    min_p=st.floats(0, 1),
    max_tokens=st.one_of(st.none(), st.integers(1, 10**6)),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_every_value_in_range_is_kept(**given_values: Any) -> None:
    params = SamplingParams(**given_values)
    assert {name: getattr(params, name) for name in given_values} == given_values
    assert params.clone() == params
