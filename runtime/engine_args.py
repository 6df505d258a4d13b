"""vLLM's engine arguments against a compiled engine: what the Plan fixed cannot be asked for again differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_gen.runtime.folders import PlanHead
from deepinfer_gen.runtime.sampling_params import ParameterError

PLAN_KEY_OF = {
    "max_num_seqs": "limits.max_num_seqs",
    "max_model_len": "limits.max_model_len",
    "max_num_batched_tokens": "limits.max_num_batched_tokens",
    "data_parallel_size": "parallel.dp",
    "prefill_context_parallel_size": "parallel.cp",
    "block_size": "kv.block_size",
    "num_gpu_blocks_override": "kv.num_blocks",
    "kv_cache_dtype": "kv.main_format",
    "kv_cache_memory_bytes": "memory.block_kv_bytes",
    "dtype": "numerics.policy",
    "spec_tokens": "speculative.nextn",
}
_SETTING_OF = {"memory.block_kv_bytes": "kv.num_blocks"}
_NOT_ASKED = {"dtype": "auto", "kv_cache_dtype": "auto"}

ONLY = {
    "tokenizer_mode": ("auto", "the checkpoint's tokenizer.json is always used"),
    "tensor_parallel_size": (1, "attention is data parallel and experts are expert parallel in this engine"),
    "pipeline_parallel_size": (1, "there is no pipeline parallelism in this engine"),
    "quantization": (None, "weights are used as the checkpoint stores them, by numerics.policy"),
    "revision": (None, "checkpoints are folders, not hub names"),
    "gpu_memory_utilization": (0.92, "the memory plan and its margin are compiled in; see hardware.memory_margin"),
    "enforce_eager": (False, "graph sizes are compiled in; see graphs.sizes"),
    "hf_overrides": (None, "the model config is compiled in"),
    "compilation_config": (None, "the engine is already compiled"),
    "structured_outputs_config": (None, "structured output is not supported by this engine"),
    "spec_method": (None, "drafting is compiled in; see speculative.nextn"),
    "spec_model": (None, "drafting is compiled in; see speculative.nextn"),
    "enable_prefix_caching": (False, "there is no prefix cache in this engine"),
    "swap_space": (0, "nothing is swapped in this engine"),
    "cpu_offload_gb": (0, "nothing is offloaded in this engine"),
    "enable_lora": (False, "there are no adapters in this engine"),
}


_UNUSED = {
    "lora_request": "there are no adapters in this engine",
    "priority": "requests are served first come, first served",
    "tokenization_kwargs": "the checkpoint's tokenizer is used as it is",
    "mm_processor_kwargs": "prompts are text or token ids in this engine",
}


def refuse_unused(**arguments: Any) -> None:
    """Raise ``ParameterError`` for a request argument of vLLM that has no meaning here and is not None."""
    for name, value in arguments.items():
        if value is not None:
            raise ParameterError(f"{name} must be None: {_UNUSED[name]}.", parameter=name, value=value)


def check_engine_arguments(arguments: Mapping[str, Any], plan: PlanHead) -> None:
    """Compare arguments with the compiled Plan.

    Raises ``TypeError`` for an unknown name, and ``ParameterError`` naming what the Plan fixes, the spec line that
    says so and the command that changes it. An argument that repeats the Plan's value is fine; so is None.
    """
    unknown = sorted(set(arguments) - set(PLAN_KEY_OF) - set(ONLY) - {"enable_expert_parallel"})
    if unknown:
        raise TypeError(f"LLM() got unexpected keyword arguments {unknown}")
    for name, asked in arguments.items():
        if name in ONLY:
            allowed, why = ONLY[name]
            if asked is not None and asked != allowed:
                raise ParameterError(f"{name} must be {allowed!r}: {why}.", parameter=name, value=asked)
        elif name == "enable_expert_parallel":
            _compare(name, asked, plan.values["parallel.ep"]["value"] > 1, plan, "parallel.ep")
        elif asked != _NOT_ASKED.get(name):
            key = PLAN_KEY_OF[name]
            _compare(name, asked, plan.values[key]["value"], plan, key)


def _compare(name: str, asked: Any, fixed: Any, plan: PlanHead, key: str) -> None:
    if asked is None or asked == fixed:
        return
    source = plan.values[key]["source"]
    setting = _SETTING_OF.get(key, key)
    place = f"edit {source}" if source.startswith(plan.spec_file) else f"set {setting} in {plan.spec_file}"
    raise ParameterError(
        f"plan '{plan.name}' fixes {name}={fixed!r}; you asked {asked!r}; "
        f"{place} and run deepinfer-gen {plan.spec_file}.",
        parameter=name,
        value=asked,
    )
