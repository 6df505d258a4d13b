"""Rules between spec keys, the model config and the hardware table.

One row per rule: its code, the keys it reads, the engine types it holds for, what must hold, the sentence said when it
does not, and the remedy. A message ends with every value involved and the line or default it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from deepinfer_gen.formula import ceil_div, evaluate
from deepinfer_gen.specs.cache_formats import CACHE_FORMATS
from deepinfer_gen.specs.schema_types import ALL, DECODES, PREFILLS

_CONFIG = "model.config."
LONGEST_SEQUENCE = "max_model_len + nextn + (nextn + 1) + nextn"
"""Tokens of one longest sequence: drafts to verify, slack of one step scheduled ahead, drafts written after it."""
_ACTIVATION_GROUP = CACHE_FORMATS["mxfp8_g32"].group
_FORMATS = (("kv.main_format", "head_dim"), ("kv.index_format", "index_head_dim"), ("kv.swa_format", "head_dim"))


@dataclass(frozen=True, slots=True)
class Rule:
    """``holds`` gets the values of ``keys`` in order; the diagnostic points at the first key that the spec writes."""

    code: str
    keys: tuple[str, ...]
    holds: Callable[..., bool]
    sentence: str
    help: str
    types: tuple[str, ...] = ALL


def _multiple_of_ratios(tokens: int, ratios: tuple[int, ...]) -> bool:
    return all(tokens % ratio == 0 for ratio in ratios if ratio)


def _fits(num_blocks: int | str, max_model_len: int, nextn: int, block_size: int) -> bool:
    if isinstance(num_blocks, str):
        return True  # auto: the memory plan decides
    longest = evaluate(LONGEST_SEQUENCE, {"max_model_len": max_model_len, "nextn": nextn})
    assert isinstance(longest, int)
    return num_blocks > ceil_div(longest, block_size)


RULES: tuple[Rule, ...] = (
    Rule(
        "DI030",
        ("parallel.ep", "parallel.dp", "parallel.cp"),
        lambda ep, dp, cp: ep <= dp * cp,
        "parallel.ep exceeds the number of ranks, dp * cp",
        "lower ep or raise dp",
    ),
    Rule(
        "DI031",
        ("parallel.ep", "parallel.dp", "parallel.cp"),
        lambda ep, dp, cp: ep > dp * cp or dp * cp % ep == 0,
        "the ranks, dp * cp, must be a multiple of parallel.ep",
        "every EP group needs the same number of ranks",
    ),
    Rule(
        "DI032",
        ("limits.max_num_batched_tokens", "parallel.cp"),
        lambda tokens, cp: cp == 1 or tokens >= 2 * cp,
        "limits.max_num_batched_tokens must be at least 2 * cp",
        "the mirror split gives every rank two pieces of a prompt",
        PREFILLS,
    ),
    Rule(
        "DI033",
        ("limits.prefill_max_sum_seqlen_k", "limits.max_model_len"),
        lambda total, longest: total >= longest,
        "limits.prefill_max_sum_seqlen_k must be at least limits.max_model_len",
        "otherwise the longest prompt could never be prefilled",
    ),
    Rule(
        "DI034",
        ("limits.max_num_prompts", "limits.max_num_seqs"),
        lambda prompts, seqs: prompts <= seqs,
        "limits.max_num_prompts exceeds limits.max_num_seqs",
        "a prefill step admits no more prompts than there are places",
    ),
    Rule(
        "DI035",
        ("kv.block_size", _CONFIG + "compress_ratios"),
        _multiple_of_ratios,
        "kv.block_size must be a multiple of every compression ratio",
        "use a power of two such as 128",
    ),
    Rule(
        "DI036",
        ("kv.block_size", "kv.store_grain"),
        lambda block, grain: block % grain == 0 or grain % block == 0,
        "kv.block_size must divide kv.store_grain or be a multiple of it",
        "use powers of two for both",
    ),
    Rule(
        "DI037",
        ("kv.store_grain", _CONFIG + "compress_ratios"),
        _multiple_of_ratios,
        "kv.store_grain must be a multiple of every compression ratio",
        "a stored state must not cut a compressed row in two",
    ),
    Rule(
        "DI038",
        ("kv.num_blocks", "limits.max_model_len", "speculative.nextn", "kv.block_size"),
        _fits,
        "kv.num_blocks is too small for one longest sequence, ceil((max_model_len + 3 * nextn + 1) / block_size) + 1",
        "raise num_blocks, leave it auto, or lower max_model_len",
    ),
    *(
        Rule(
            "DI039",
            (key, "numerics.policy"),
            lambda format_, policy: policy != "float32_unquantized" or format_ == "fp32",
            f"{key} must be fp32 under numerics.policy: float32_unquantized",
            "leave the format auto, or choose policy float32 to keep quantised caches",
        )
        for key, _ in _FORMATS
    ),
    *(
        Rule(
            "DI040",
            (key, _CONFIG + width),
            lambda format_, width: width % CACHE_FORMATS[format_].group == 0,
            f"the groups of {key} do not divide {width}",
            "choose bf16 or fp32 for this model",
        )
        for key, width in _FORMATS
    ),
    Rule(
        "DI041",
        ("speculative.nextn", _CONFIG + "dspark_block_size"),
        lambda nextn, block: nextn <= block,
        "speculative.nextn exceeds the checkpoint's dspark_block_size",
        "positions past the drafted block are never accepted",
    ),
    Rule(
        "DI042",
        ("speculative.max_backtracking_tokens", "speculative.nextn"),
        lambda backtracking, nextn: backtracking >= nextn + 1,
        "speculative.max_backtracking_tokens must be at least nextn + 1",
        "a rollback may rewrite all drafts and the bonus token",
    ),
    Rule(
        "DI043",
        ("speculative.verify", "speculative.nextn"),
        lambda verify, nextn: verify == "fixed" or nextn > 0,
        "speculative.verify: varlen has nothing to vary without drafts",
        "write verify: fixed, or raise nextn",
        DECODES,
    ),
    Rule(
        "DI044",
        ("speculative.verify", "determinism.batch_invariant"),
        lambda verify, invariant: verify == "fixed" or not invariant,
        "determinism.batch_invariant refuses speculative.verify: varlen",
        "verification lengths depend on the batch; write verify: fixed",
        DECODES,
    ),
    Rule(
        "DI051",
        ("speculative.prior_survival", "speculative.verify"),
        lambda prior, verify: verify == "varlen" or prior == Fraction(4, 5),
        "speculative.prior_survival means nothing where every draft is verified",
        "leave it out, or write verify: varlen",
        DECODES,
    ),
    Rule(
        "DI052",
        ("speculative.min_gain", "speculative.verify"),
        lambda gain, verify: verify == "varlen" or gain == 0,
        "speculative.min_gain means nothing where every draft is verified",
        "leave it out, or write verify: varlen",
        DECODES,
    ),
    Rule(
        "DI045",
        ("yoco.keep_tokens", "speculative.max_backtracking_tokens", _CONFIG + "sliding_window"),
        lambda keep, backtracking, window: keep >= window + backtracking,
        "yoco.keep_tokens must be at least the ring, sliding_window + max_backtracking_tokens",
        "the rows that pass the cut must fill the window of the first decoded token",
        PREFILLS,
    ),
    Rule(
        "DI046",
        ("schedule.prefill_any_attempt_interval", "schedule.prefill_attempt_interval"),
        lambda any_, all_: any_ > all_,
        "schedule.prefill_any_attempt_interval must be larger than prefill_attempt_interval",
        "one rank may force a prefill only after all together had their chance",
        ("NORMAL",),
    ),
    Rule(
        "DI047",
        ("schedule.stop_preempted_request", "engine.type"),
        lambda stop, _: stop,
        "a COMPLETION engine cannot recompute a preempted request",
        "it has no prefill; remove the key",
        ("COMPLETION",),
    ),
    Rule(
        "DI048",
        ("schedule.zos", "engine.type"),
        lambda zos, _: zos == "off",
        "a PROMPT engine has no overlapped decode step, so schedule.zos cannot be on",
        "remove the key",
        ("PROMPT",),
    ),
    Rule(
        "DI049",
        ("limits.max_model_len", _CONFIG + "max_position_embeddings"),
        lambda longest, positions: longest <= positions,
        "limits.max_model_len exceeds the positions of the model",
        "lower max_model_len",
    ),
    Rule(
        "DI053",
        ("numerics.policy", _CONFIG + "q_lora_rank", _CONFIG + "o_groups", _CONFIG + "o_lora_rank"),
        lambda policy, query, groups, output: (
            policy != "released" or query % _ACTIVATION_GROUP == groups * output % _ACTIVATION_GROUP == 0
        ),
        "numerics.policy: released rounds activations in groups of 32, which do not divide the query or output latents",
        "q_lora_rank and o_groups * o_lora_rank must be multiples of 32; choose bf16 or float32 for this model",
    ),
    Rule(
        "DI050",
        ("speculative.nextn", _CONFIG + "num_nextn_predict_layers"),
        lambda nextn, layers: nextn == 0 or layers > 0,
        "speculative.nextn needs draft layers, and the checkpoint has none",
        "write nextn: 0",
    ),
)
