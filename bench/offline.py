"""Time generation with tiny-cpu: ``python bench/offline.py [--runs N]``.

The engine and a plain loop over the same modules (no scheduler, no padding, no sampler: the loop fills the batches by
hand and takes the argmax) generate the same tokens in turn; the difference per step is what the engine adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from timing import HEADER, row

from deepinfer_gen import LLM, SamplingParams
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import Model

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: python bench/offline.py --runs 5"
    )
    parser.add_argument("--engine", default=str(ROOT / "generated" / "tiny-cpu"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    layout = json.loads(Path(arguments.engine, "layout.json").read_text())
    print(HEADER)
    with LLM(engine=arguments.engine) as llm:
        for batch in (1, 4, 16):
            compare(llm, layout["block"]["tokens"], batch, arguments.prompt_len, arguments.output_len, arguments.runs)


def compare(llm: LLM, block_size: int, batch: int, prompt_len: int, output_len: int, runs: int) -> None:
    """Three rows: prefill and decode of the engine beside the loop, and the engine's own time per decode step."""
    prompts = [[3 + (7 * i + 5 * j) % 500 for j in range(prompt_len)] for i in range(batch)]
    plain = PlainLoop(llm, block_size, prompt_len + output_len)
    engine_prefill, engine_decode, plain_prefill, plain_decode = [], [], [], []
    for _ in range(runs + 1):
        tokens, prefill, decode = engine_run(llm, prompts, output_len)
        engine_prefill.append(prefill)
        engine_decode.append(decode)
        expected, prefill, decode = plain.run(prompts, output_len)
        plain_prefill.append(prefill)
        plain_decode.append(decode)
        if tokens != expected:
            sys.exit("the engine and the plain loop differ in their tokens")
    del engine_prefill[0], engine_decode[0], plain_prefill[0], plain_decode[0]  # the first run warms up
    name = f"{batch} × {prompt_len} + {output_len}"
    steps = output_len - 1
    print(
        row(
            f"prefill, {name}: {rate(engine_prefill, batch * prompt_len)}",
            engine_prefill,
            plain_prefill,
            "plain loop",
            "ms",
        )
    )
    per_step, plain_step = [t / steps for t in engine_decode], [t / steps for t in plain_decode]
    print(row(f"decode step, {name}: {rate(engine_decode, batch * steps)}", per_step, plain_step, "plain loop", "ms"))
    overhead = [a - b for a, b in zip(per_step, plain_step, strict=True)]
    print(row(f"engine overhead per step, {name}", overhead, plain_step, "plain loop", "ms"), flush=True)


def rate(times: list[float], tokens: int) -> str:
    return f"{tokens / statistics.median(times):,.0f} tokens/s"


def engine_run(llm: LLM, prompts: list[list[int]], output_len: int) -> tuple[list[list[int]], float, float]:
    """Tokens, seconds of the prefill step and of all decode steps."""
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    llm.enqueue([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    engine = llm.llm_engine
    start = time.perf_counter()
    engine.step()
    prefilled = time.perf_counter()
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    end = time.perf_counter()
    outputs.sort(key=lambda output: int(output.request_id))
    return [output.outputs[0].token_ids for output in outputs], prefilled - start, end - prefilled


class PlainLoop:
    """Greedy generation with the engine's modules and cache layout, batches filled by hand."""

    def __init__(self, llm: LLM, block_size: int, longest: int) -> None:
        worker = llm.llm_engine._worker
        self.model: Model = worker._model
        self.cache: KVCache = worker._cache
        self.blocks = -(-longest // block_size)

    def run(self, prompts: list[list[int]], output_len: int) -> tuple[list[list[int]], float, float]:
        count = len(prompts)
        self.slots = torch.arange(1, count + 1)
        self.tables = torch.arange(1, count * self.blocks + 1).view(count, self.blocks)
        self.cache.zero_states(self.slots)
        start = time.perf_counter()
        newest = self.step(prompts, [0] * count)
        prefilled = time.perf_counter()
        tokens = [newest]
        for step in range(output_len - 1):
            lengths = [len(p) + step for p in prompts]
            tokens.append(self.step([[t] for t in tokens[-1]], lengths, [p[-3:] for p in histories(prompts, tokens)]))
        end = time.perf_counter()
        return [list(column) for column in zip(*tokens, strict=True)], prefilled - start, end - prefilled

    def step(self, rows: list[list[int]], starts: list[int], history: list[list[int]] | None = None) -> list[int]:
        counts = np.array([len(r) for r in rows])
        ends = counts.cumsum()
        batch = ForwardBatch(
            input_ids=torch.tensor([t for r in rows for t in r]),
            positions=torch.cat([torch.arange(s, s + len(r)) for r, s in zip(rows, starts, strict=True)]),
            row_of_token=torch.from_numpy(np.repeat(np.arange(len(rows)), counts)),
            q_start=torch.from_numpy(ends - counts),
            q_len=torch.from_numpy(counts),
            k_len=torch.from_numpy(np.array(starts) + counts),
            slot=self.slots,
            block_table=self.tables,
            history=torch.tensor(history if history is not None else [[-1, -1, -1]] * len(rows)),
        )
        return self.model(batch, self.cache, torch.from_numpy(ends - 1)).argmax(-1).tolist()


def histories(prompts: list[list[int]], tokens: list[list[int]]) -> list[list[int]]:
    """The ids before each sequence's newest token."""
    return [p + [column[i] for column in tokens[:-1]] for i, p in enumerate(prompts)]


if __name__ == "__main__":
    main()
