"""The lines printed while an engine starts, each with the Plan's prediction beside what was measured."""

from __future__ import annotations

import logging

from deepinfer_gen.runtime.mechanisms import PlanValues

logger = logging.getLogger(__name__)

_GIB = 2**30


def report_model(values: PlanValues, *, loaded_bytes: int, seconds: float) -> None:
    """``Model loading took …``: bytes read from the checkpoint, and the weights the Plan counted as stored."""
    planned = sum(values[f"memory.weights_{part}_bytes"]["value"] for part in ("dense", "experts", "engram"))
    logger.info(
        "Model loading took %.4f GiB and %.2f seconds (plan: %.4f GiB as stored)",
        loaded_bytes / _GIB,
        seconds,
        planned / _GIB,
    )


def report_cache(values: PlanValues, *, cache_bytes: int, tokens: int) -> None:
    """``KV cache size`` and ``Maximum concurrency``: what was allocated, and what the Plan counted."""
    planned_bytes = values["memory.block_kv_bytes"]["value"] + values["memory.state_bytes"]["value"]
    planned_tokens = (values["kv.num_blocks"]["value"] - 1) * values["kv.block_size"]["value"]
    longest = values["limits.max_model_len"]["value"]
    logger.info(
        "KV cache size: %s tokens (plan: %s), %.4f GiB with state slots (plan: %.4f GiB)",
        f"{tokens:,}",
        f"{planned_tokens:,}",
        cache_bytes / _GIB,
        planned_bytes / _GIB,
    )
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx (plan: %.2fx, at most %d sequences)",
        f"{longest:,}",
        tokens / longest,
        planned_tokens / longest,
        values["limits.max_num_seqs"]["value"],
    )


def report_ready(*, seconds: float) -> None:
    """``init engine took …``."""
    logger.info("init engine took %.2f seconds", seconds)
