"""Puts an engine together: folder, checkpoint and tokenizer become a running ``LLMEngine``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch

from deepinfer_gen.runtime import startup
from deepinfer_gen.runtime.device import CpuDevice, Device
from deepinfer_gen.runtime.engine import Capacity, LLMEngine
from deepinfer_gen.runtime.folders import PlanHead
from deepinfer_gen.runtime.graphs import GraphTable
from deepinfer_gen.runtime.group import LocalReducer
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.loader import load_engine
from deepinfer_gen.runtime.model.model import load_model
from deepinfer_gen.runtime.output_builder import OutputBuilder
from deepinfer_gen.runtime.sampler import Sampler, SamplingTable
from deepinfer_gen.runtime.stats import EngineStats
from deepinfer_gen.runtime.tokenizer import Tokenizer
from deepinfer_gen.runtime.trace import TraceWriter
from deepinfer_gen.runtime.worker import Worker

if TYPE_CHECKING:
    from deepinfer_gen.runtime.model.model import Model


@dataclass(frozen=True, slots=True)
class AssembledEngine:
    """A running engine and what its owner needs of it besides."""

    engine: LLMEngine
    device: Device
    model: Model
    vocab_size: int


def assemble(
    folder: Path,
    plan: PlanHead,
    checkpoint: Path,
    tokenizer: Tokenizer | None,
    *,
    log_stats: bool,
    trace: TextIO | None,
) -> AssembledEngine:
    """Verify and load the engine in ``folder`` with the weights in ``checkpoint``, and report what was measured.

    Raises ``InputError`` for a stale or damaged engine and for a checkpoint that does not fit it.
    """
    began = time.monotonic()
    loaded = load_engine(folder)
    model_began = time.monotonic()
    model = load_model(loaded.model, loaded.kernels, checkpoint)
    startup.report_model(plan.values, loaded_bytes=model.report.loaded_bytes, seconds=time.monotonic() - model_began)
    cache = KVCache(loaded.layout, torch.device("cpu"))
    block, state = loaded.layout["block"], loaded.layout["state"]
    startup.report_cache(
        plan.values,
        cache_bytes=cache.blocks.nbytes + cache.slots.nbytes,
        tokens=(block["count"] - 1) * block["tokens"],
    )
    constants = loaded.model.constants
    vocab_size, eos = int(constants["vocab_size"]), int(constants["eos_token_id"])
    device = CpuDevice()
    worker = Worker(
        device,
        model,
        cache,
        Sampler(loaded.kernels["sampler"]),
        SamplingTable(vocab_size),
        GraphTable.from_json(loaded.graphs),
    )
    engine = LLMEngine(
        loaded.extension.Scheduler(),
        worker,
        OutputBuilder(tokenizer, eos),
        EngineStats(loaded.name, device.now, log=log_stats),
        eos_token_id=eos,
        capacity=Capacity(block["count"] - 1, state["count"] - 1),
        reducer=LocalReducer(),
        votes=plan.values["engine.type"]["value"] == "NORMAL",
        clock=device.now,
        trace=None if trace is None else TraceWriter(trace, loaded.layout, loaded.kernels),
    )
    startup.report_ready(seconds=time.monotonic() - began)
    return AssembledEngine(engine, device, model, vocab_size)
