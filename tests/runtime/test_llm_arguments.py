"""Constructor arguments: what the Plan fixed cannot be asked for differently, and nothing is ignored."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_spec import TINY, TINY_SPEC

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.engine_args import ONLY, PLAN_KEY_OF
from deepinfer_gen.runtime.llm import LLM
from deepinfer_gen.runtime.logs import configure_logging
from deepinfer_gen.runtime.sampling_params import ParameterError, SamplingParams

CONTRADICTIONS: list[tuple[str, Any, str]] = [
    ("max_num_seqs", 17, "fixes max_num_seqs=16; you asked 17; edit tiny-test.yaml:14:"),
    ("max_model_len", 4096, "fixes max_model_len=1024; you asked 4096; edit tiny-test.yaml:15:"),
    ("max_num_batched_tokens", 1, "set limits.max_num_batched_tokens in tiny-test.yaml"),
    ("data_parallel_size", 2, "parallel.dp"),
    ("prefill_context_parallel_size", 2, "parallel.cp"),
    ("enable_expert_parallel", True, "parallel.ep"),
    ("block_size", 16, "edit tiny-test.yaml:18:"),
    ("num_gpu_blocks_override", 7, "kv.num_blocks"),
    ("kv_cache_dtype", "fp8", "kv.main_format"),
    ("kv_cache_memory_bytes", 1, "set kv.num_blocks in tiny-test.yaml"),
    ("dtype", "float16", "edit tiny-test.yaml:31:"),
    ("spec_tokens", 3, "edit tiny-test.yaml:21:"),
]
REFUSED: list[tuple[str, Any]] = [
    ("tokenizer_mode", "slow"),
    ("tensor_parallel_size", 2),
    ("pipeline_parallel_size", 2),
    ("quantization", "fp8"),
    ("revision", "main"),
    ("gpu_memory_utilization", 0.5),
    ("enforce_eager", True),
    ("hf_overrides", {"a": 1}),
    ("compilation_config", 3),
    ("structured_outputs_config", {}),
    ("spec_method", "mtp"),
    ("spec_model", "m"),
    ("enable_prefix_caching", True),
    ("swap_space", 4),
    ("cpu_offload_gb", 1),
    ("enable_lora", True),
]


@pytest.mark.parametrize(("name", "value", "message"), CONTRADICTIONS, ids=[c[0] for c in CONTRADICTIONS])
def test_a_contradiction_names_the_plan_and_the_line(tiny_engine: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        LLM(engine=tiny_engine, **{name: value})
    assert message in str(caught.value)
    assert "run deepinfer-gen tiny-test.yaml" in str(caught.value)
    assert caught.value.parameter == name


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_this_engine_has_not_is_refused(tiny_engine: Path, name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        LLM(engine=tiny_engine, **{name: value})


def test_the_tables_are_covered() -> None:
    assert {c[0] for c in CONTRADICTIONS} == {*PLAN_KEY_OF, "enable_expert_parallel"}
    assert {r[0] for r in REFUSED} == set(ONLY)


def test_an_unknown_argument_is_a_type_error(tiny_engine: Path) -> None:
    with pytest.raises(TypeError, match="max_seqs"):
        LLM(engine=tiny_engine, max_seqs=3)


def test_values_that_repeat_the_plan_are_fine_and_the_engine_closes(tiny_engine: Path, llm: LLM) -> None:
    with LLM(
        engine=tiny_engine, max_num_seqs=16, max_model_len=1024, data_parallel_size=1, enable_prefix_caching=None
    ) as made:
        assert made.generate([5], use_tqdm=False)[0].finished
    made.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        made.generate([5])


def test_an_engine_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"DI302.*'nope' or 'generated/nope'"):
        LLM(engine="nope")


def test_a_bare_name_is_looked_up_below_generated(
    tiny_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_engine, tmp_path / "generated" / "mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="DI304"):
        LLM("no/checkpoint", engine="mine")


def test_a_folder_without_a_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"values": {}}')
    with pytest.raises(InputError, match=r"DI303.*KeyError"):
        LLM(engine=tmp_path)


def test_an_engine_that_cannot_run_is_refused_before_its_files_are_verified(tiny_engine: Path, tmp_path: Path) -> None:
    plan = json.loads((tiny_engine / "plan.json").read_text())
    plan["values"]["speculative.nextn"]["value"] = 5
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(InputError, match=r"tiny-test.yaml:21:\d+: error\[DI300\].*speculative.nextn is 5"):
        LLM(engine=tmp_path)


def test_a_model_that_is_no_preset_needs_a_checkpoint(tiny_engine: Path, tmp_path: Path) -> None:
    plan = json.loads((tiny_engine / "plan.json").read_text())
    for preset, message in (("", "no preset"), ("deepseek-v4.1-flash", "ships with the preset 'deepseek-v4.1-flash'")):
        plan["values"]["model.preset"]["value"] = preset
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(InputError, match=f"DI305.*{message}"):
            LLM(engine=tmp_path)


def test_a_generation_config_gives_defaults_or_a_reason(tiny_engine: Path, tmp_path: Path) -> None:
    from deepinfer_gen.runtime.generation_config import default_sampling_params

    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 7, "do_sample": True}))
    params = default_sampling_params(tmp_path)
    assert (params.temperature, params.top_p, params.max_tokens) == (0.6, 0.9, 7)
    for text in ('{"repetition_penalty": 1.2}', "{", "[]"):
        path.write_text(text)
        with pytest.raises(InputError, match="DI306"):
            default_sampling_params(tmp_path)


def test_a_profiler_that_is_not_there(tiny_engine: Path) -> None:
    with pytest.raises(ParameterError, match="profiler='torch'"):
        LLM(engine=tiny_engine, profiler_config={"profiler": "cuda"})


def forget_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has set up logging yet; what is set up is undone after the test."""
    package = logging.getLogger("deepinfer_gen")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "propagate", package.propagate)
    monkeypatch.setattr(package, "level", package.level)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_an_unknown_variable_gets_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_logging(monkeypatch)
    monkeypatch.setenv("DEEPINFER_MAX_SEQS", "3")
    configure_logging()
    configure_logging()
    assert capsys.readouterr().err.count("DEEPINFER_MAX_SEQS is not known") == 1


def test_a_wrong_log_level_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_logging(monkeypatch)
    monkeypatch.setenv("DEEPINFER_LOG_LEVEL", "loud")
    with pytest.raises(InputError, match="LOUD"):
        configure_logging()


def test_from_spec_and_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LLM.from_spec(TINY_SPEC, skip_tokenizer_init=True) as made:
        assert (tmp_path / "generated" / TINY / "manifest.json").is_file()
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        completion = made.generate([5], params, use_tqdm=False)[0].outputs[0]
        assert (len(completion.token_ids), completion.text) == (2, "")
        with pytest.raises(ParameterError, match="no tokenizer"):
            made.generate("w1", params)
        with pytest.raises(ParameterError, match="stop strings need a tokenizer"):
            made.generate([5], params.clone(stop="a"))
        with pytest.raises(ParameterError, match="outside the vocabulary"):
            made.generate([5], params.clone(stop_token_ids=[512]))
        with pytest.raises(RuntimeError, match="skip_tokenizer_init"):
            made.get_tokenizer()
