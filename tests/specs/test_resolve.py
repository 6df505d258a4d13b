"""Defaults, their formulas and sources, and the digest. Expected values are computed by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tiny_spec import TINY, TINY_SPEC

from deepinfer_gen.formula import evaluate
from deepinfer_gen.specs.dump import resolved_as_dict, spec_as_dict, spec_digest
from deepinfer_gen.specs.fields import spec_fields
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.presets import shipped_specs
from deepinfer_gen.specs.resolve import resolve
from deepinfer_gen.specs.resolved import Resolved


def resolved(name: str = TINY, **overrides: str) -> Resolved:
    """A shipped spec by name, or the tests' own one, with ``section__field="text"`` changed."""
    spec = TINY_SPEC if name == TINY else name
    return resolve(load_spec(spec, {key.replace("__", "."): value for key, value in overrides.items()}))


@pytest.mark.parametrize(("spec", "overrides", "key", "value"), [
    (TINY, {}, "limits.max_num_prompts", 16),                        # min(16, 16)
    (TINY, {"limits__max_num_seqs": "5"}, "limits.max_num_prompts", 5),
    ("v41-flash-normal-ep8", {}, "limits.max_num_prompts", 16),            # min(16, 128)
    (TINY, {}, "limits.max_num_batched_tokens", 8192),               # min(8192, 16 * 1024)
    (TINY, {"limits__max_num_seqs": "1", "limits__max_model_len": "100"}, "limits.max_num_batched_tokens", 100),
    (TINY, {"limits__max_num_seqs": "1", "limits__max_model_len": "3", "parallel__cp": "4"},
     "limits.max_num_batched_tokens", 8),                                  # max(2 * 4, 3)
    (TINY, {}, "limits.prefill_max_sum_seqlen_k", 32768),            # max(1024, 4 * 8192)
    ("v41-flash-normal-ep8", {}, "limits.prefill_max_sum_seqlen_k", 131072),
    ("v41-flash-decode-ep64", {}, "limits.max_num_batched_tokens", 8192),
    (TINY, {}, "kv.block_size", 32),
    ("v41-flash-normal-ep8", {}, "kv.num_blocks", "auto"),
    (TINY, {}, "kv.main_format", "fp32"),
    (TINY, {"numerics__policy": "float32"}, "kv.main_format", "nvfp4_g16"),
    (TINY, {"numerics__policy": "bf16"}, "kv.index_format", "mxfp4_g32"),
    (TINY, {"numerics__policy": "released"}, "kv.swa_format", "mxfp8_g32"),
    (TINY, {"numerics__policy": "released", "kv__swa_format": "bf16"}, "kv.swa_format", "bf16"),
    (TINY, {}, "state.slots_ratio", Fraction(6, 5)),
    (TINY, {"state__slots_ratio": "1.25"}, "state.slots_ratio", Fraction(5, 4)),
    (TINY, {"state__slots_ratio": "2"}, "state.slots_ratio", 2),
    (TINY, {}, "speculative.prior_survival", Fraction(4, 5)),
    (TINY, {}, "speculative.max_backtracking_tokens", 1),            # 0 + 1
    ("v41-flash-normal-ep8", {}, "speculative.max_backtracking_tokens", 6),
    (TINY, {}, "yoco.keep_tokens", 140),                             # max(140, 128 + 1)
    (TINY, {"speculative__max_backtracking_tokens": "20"}, "yoco.keep_tokens", 148),
    ("v41-flash-normal-ep8", {}, "yoco.mode", "compact"),
    ("v41-flash-normal-ep8", {}, "speculative.verify", "varlen"),
    ("v41-flash-normal-ep8", {"speculative__nextn": "0"}, "speculative.verify", "fixed"),
    ("v41-flash-normal-ep8", {"determinism__batch_invariant": "true"}, "speculative.verify", "fixed"),
    ("v41-flash-normal-ep8", {}, "schedule.zos", "on"),
    ("v41-flash-normal-ep8", {"schedule__zos": "auto"}, "schedule.zos", "off"),
    ("v41-flash-normal-ep8", {"schedule__zos": "true"}, "schedule.zos", "on"),
    ("v41-flash-normal-ep8", {"schedule__zos": "false"}, "schedule.zos", "off"),
    (TINY, {"yoco__mode": "false"}, "yoco.mode", "off"),
    ("v41-flash-normal-ep8", {}, "schedule.prefill_burst", 8),             # ceil(128 / 16)
    (TINY, {"limits__max_num_seqs": "1000"}, "schedule.prefill_burst", 16),
    (TINY, {"schedule__prefill_burst": "3"}, "schedule.prefill_burst", 3),
    ("v41-flash-prefill-ep8", {}, "schedule.prefill_cache_usage_limit", Fraction(9, 10)),
    ("v41-flash-prefill-ep8", {}, "eplb.min_redundant_per_rank", 4),
    ("v41-flash-prefill-ep8", {}, "eplb.window_steps", 100),
    ("v41-flash-prefill-ep8", {}, "eplb.rebalance_steps", 1000),
    ("v41-flash-decode-ep64", {}, "eplb.min_redundant_per_rank", 1),
    (TINY, {}, "eplb.window_steps", 1000),
    (TINY, {}, "eplb.rebalance_steps", 10000),
    (TINY, {}, "parallel.engram_placement", "replicated"),
    ("v41-flash-normal-ep8-sm90", {}, "parallel.engram_placement", "sharded"),
    ("v41-flash-normal-ep8-ascend950", {}, "parallel.engram_placement", "sharded"),
    ("v41-flash-normal-ep8-sm90", {}, "numerics.policy", "bf16"),
    ("v41-flash-normal-ep8", {}, "numerics.policy", "released"),
    ("v41-flash-normal-ep8-ascend950", {}, "numerics.policy", "released"),
    ("v41-flash-normal-ep8", {"hardware": "cpu"}, "numerics.policy", "float32"),
    (TINY, {}, "kernels.pdl", "off"),
])  # fmt: skip
def test_value(spec: str, overrides: dict[str, str], key: str, value: Any) -> None:
    assert resolved(spec, **overrides)[key] == value


def test_sources() -> None:
    settings = resolved().settings
    assert settings["kv.block_size"].source == f"{TINY}.yaml:18:15"
    assert settings["kv.num_blocks"].source == "default"
    assert settings["kv.main_format"].source == "default: auto follows numerics.policy"
    assert settings["schedule.zos"].source == f"{TINY}.yaml:28:8"
    auto = resolved(schedule__zos="auto").settings["schedule.zos"]
    says = "auto is off for PROMPT, and elsewhere while the overlapped step is not built"
    assert auto.source == f"--set schedule.zos=auto: {says}"
    assert says in auto.why


@pytest.mark.parametrize("name", sorted(shipped_specs()))
def test_formulas_reproduce_values_and_every_operand_is_a_plan_key(name: str) -> None:
    spec = resolved(name)
    known = {key: setting.value for key, setting in spec.settings.items()}
    known |= {f"model.config.{key}": setting.value for key, setting in spec.model.settings().items()}
    known |= {f"hardware.{key}": setting.value for key, setting in spec.hardware.settings.items()}
    computed = {key: setting for key, setting in spec.settings.items() if setting.formula}
    assert len(computed) >= 10
    for key, setting in computed.items():
        assert evaluate(setting.formula, {n: known[k] for n, k in setting.operands}) == setting.value, key
    assert all(setting.why and setting.source for setting in spec.settings.values())
    assert not any(isinstance(value, float) for value in known.values())


@pytest.mark.parametrize(
    ("name", "engine_type"),
    [(TINY, "NORMAL"), ("v41-flash-prefill-ep8", "PROMPT"), ("v41-flash-decode-ep64", "COMPLETION")],
)
def test_only_meaningful_settings_are_there(name: str, engine_type: str) -> None:
    expected = {key for key, field in spec_fields().items() if engine_type in field.engine_types}
    assert set(resolved(name).settings) == expected
    assert "parallel.dp" in expected
    assert ("graphs.batch_size_interval" in expected) == (engine_type != "PROMPT")
    assert ("parallel.cp" in expected) == (engine_type != "COMPLETION")
    assert ("schedule.prefill_attempt_interval" in expected) == (engine_type == "NORMAL")


def test_digest_covers_meaning_and_not_position(tmp_path: Path) -> None:
    text = TINY_SPEC.read_text(encoding="utf-8")
    moved = tmp_path / "moved.yaml"
    moved.write_text("# moved\n\n" + text.replace("zos: off", 'zos: "off"   # reworded'), encoding="utf-8")
    digest = spec_digest(resolved())
    assert len(digest) == 64
    assert spec_digest(resolve(load_spec(moved))) == digest
    assert spec_digest(resolved(schedule__zos="on")) != digest
    assert spec_digest(resolved(hardware="sm90")) != digest
    assert spec_digest(resolved(model="deepseek-v4.1-flash")) != digest
    # Writing a default out changes nothing.
    assert spec_digest(resolved(kv__store_grain="128")) == digest


def test_dumps() -> None:
    loaded = load_spec(TINY_SPEC)
    assert spec_as_dict(loaded)["kv.block_size"] == {"value": 32, "source": f"{TINY}.yaml:18:15"}
    assert "kv.store_grain" not in spec_as_dict(loaded)
    dumped = resolved_as_dict(resolve(loaded))
    assert dumped["settings"]["state.slots_ratio"]["value"] == "6/5"
    assert dumped["model"]["config"]["rope_scaling.factor"]["value"] == 16
    assert dumped["hardware"]["entries"]["backend"] == {
        "value": "cpu",
        "unit": "",
        "formula": "",
        "inputs": [],
        "source": "cpu.yaml: backend",
        "why": "which kernels and device runtime are used",
    }


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        (TINY, {"parallel__dp": "4", "parallel__cp": "2", "parallel__ep": "8"}),
        (TINY, {"parallel__dp": "6", "parallel__ep": "3"}),
        (TINY, {"parallel__cp": "4", "limits__max_num_batched_tokens": "8"}),
        (TINY, {"limits__max_num_batched_tokens": "1"}),
        (TINY, {"limits__prefill_max_sum_seqlen_k": "1024"}),
        (TINY, {"limits__max_num_prompts": "16"}),
        (TINY, {"limits__max_model_len": "4096"}),
        (TINY, {"kv__block_size": "2"}),
        (TINY, {"kv__block_size": "256"}),
        (TINY, {"kv__num_blocks": "34"}),  # ceil((1024 + 1) / 32) = 33, and block 0
        ("v41-flash-normal-ep8", {"kv__num_blocks": "1026"}),  # ceil((131072 + 16) / 128) = 1025, and block 0
        (TINY, {"kv__main_format": "fp32"}),
        (TINY, {"numerics__policy": "released", "kv__main_format": "bf16"}),
        (TINY, {"speculative__nextn": "5"}),
        ("v41-flash-normal-ep8", {"speculative__max_backtracking_tokens": "6"}),
        ("v41-flash-normal-ep8", {"yoco__keep_tokens": "134"}),
        ("v41-flash-normal-ep8", {"determinism__batch_invariant": "true", "speculative__verify": "fixed"}),
        (TINY, {"schedule__prefill_attempt_interval": "99"}),
        (TINY, {"schedule__stop_preempted_request": "false"}),
        ("v41-flash-decode-ep64", {"schedule__stop_preempted_request": "true"}),
        ("v41-flash-prefill-ep8", {"schedule__zos": "off"}),
        (TINY, {"state__slots_ratio": "1"}),
        (TINY, {"schedule__prefill_cache_usage_limit": "1"}),
        (TINY, {"kv__store_extra_tokens": "0", "structured_output": "true", "kernels__pdl": "auto"}),
        ("v41-flash-prefill-ep8", {"eplb__window_steps": "100"}),
        ("v41-flash-prefill-ep8", {"parallel__cp": "2"}),
    ],
)
def test_values_at_the_edge_are_accepted(spec: str, overrides: dict[str, str]) -> None:
    assert resolved(spec, **overrides).name == spec
