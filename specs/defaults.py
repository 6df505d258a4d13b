"""Defaults that follow from other values, each a formula that is both the computation and the explanation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.formula import Value, evaluate, operand_names


@dataclass(frozen=True, slots=True)
class ComputedDefault:
    """``expression`` over ``operands`` (name in the formula, Plan key)."""

    expression: str
    operands: tuple[tuple[str, str], ...]

    def value(self, known: Mapping[str, Value]) -> Value:
        """Evaluate; ``KeyError`` if an operand is not known."""
        return evaluate(self.expression, {name: known[key] for name, key in self.operands})


def _default(expression: str, **operands: str) -> ComputedDefault:
    assert set(operand_names(expression)) == set(operands), expression
    return ComputedDefault(expression, tuple(operands.items()))


def _format(quantised: str) -> ComputedDefault:
    return _default(f"'fp32' if policy == 'float32_unquantized' else '{quantised}'", policy="numerics.policy")


_CP_BATCH = _default(
    "max(2 * cp, min(8192, max_num_prompts * max_model_len))",
    cp="parallel.cp",
    max_num_prompts="limits.max_num_prompts",
    max_model_len="limits.max_model_len",
)
_BATCH = _default(
    "max(2, min(8192, max_num_prompts * max_model_len))",
    max_num_prompts="limits.max_num_prompts",
    max_model_len="limits.max_model_len",
)


def _by_type(prompt: int, other: int) -> ComputedDefault:
    return _default(f"{prompt} if engine_type == 'PROMPT' else {other}", engine_type="engine.type")


# In dependency order. A key whose written value is ``auto`` is computed like one that is left out.
COMPUTED: dict[str, Callable[[str], ComputedDefault]] = {
    "numerics.policy": lambda _: _default(
        "'float32' if backend == 'cpu' else 'bf16' if arch == 'sm_90a' else 'released'",
        backend="hardware.backend",
        arch="hardware.arch",
    ),
    "parallel.engram_placement": lambda _: _default(
        "'replicated' if backend == 'cpu' else 'sharded'", backend="hardware.backend"
    ),
    "limits.max_num_prompts": lambda _: _default("min(16, max_num_seqs)", max_num_seqs="limits.max_num_seqs"),
    "limits.max_num_batched_tokens": lambda engine_type: _BATCH if engine_type == "COMPLETION" else _CP_BATCH,
    "limits.prefill_max_sum_seqlen_k": lambda _: _default(
        "max(max_model_len, 4 * max_num_batched_tokens)",
        max_model_len="limits.max_model_len",
        max_num_batched_tokens="limits.max_num_batched_tokens",
    ),
    "kv.main_format": lambda _: _format("nvfp4_g16"),
    "kv.index_format": lambda _: _format("mxfp4_g32"),
    "kv.swa_format": lambda _: _format("mxfp8_g32"),
    "speculative.verify": lambda _: _default(
        "'fixed' if nextn == 0 else 'fixed' if batch_invariant else 'varlen'",
        nextn="speculative.nextn",
        batch_invariant="determinism.batch_invariant",
    ),
    "speculative.max_backtracking_tokens": lambda _: _default("nextn + 1", nextn="speculative.nextn"),
    "yoco.keep_tokens": lambda _: _default(
        "max(140, sliding_window + max_backtracking_tokens)",
        sliding_window="model.config.sliding_window",
        max_backtracking_tokens="speculative.max_backtracking_tokens",
    ),
    "schedule.prefill_burst": lambda _: _default(
        "clamp(ceil_div(max_num_seqs, max_num_prompts), 1, 16)",
        max_num_seqs="limits.max_num_seqs",
        max_num_prompts="limits.max_num_prompts",
    ),
    "eplb.min_redundant_per_rank": lambda _: _by_type(4, 1),
    "eplb.window_steps": lambda _: _by_type(100, 1000),
    "eplb.rebalance_steps": lambda _: _by_type(1000, 10000),
}

# What ``auto`` means where nothing else decides: only what is built.
BUILT: dict[str, tuple[Any, str]] = {
    "schedule.zos": ("off", "auto is off for PROMPT, and elsewhere while the overlapped step is not built"),
    "kernels.pdl": ("off", "auto is off while no kernel uses dependent launch"),
}

# Said behind the source of an ``auto`` value.
AUTO_SAYS: dict[str, str] = {
    "kv.main_format": "auto follows numerics.policy",
    "kv.index_format": "auto follows numerics.policy",
    "kv.swa_format": "auto follows numerics.policy",
    "schedule.prefill_burst": "auto follows limits.max_num_seqs and limits.max_num_prompts",
    **{key: says for key, (_, says) in BUILT.items()},
}
