"""Time generation with tiny-cpu: ``python bench/offline.py [--runs N]``.

The engine and a plain loop over the same modules (no scheduler, no padding, no sampler: the loop fills the batches by
hand and takes the argmax) generate the same tokens in turn. What the engine adds is the time that a decode step spends
outside the model, beside the same figure of the loop; the model's own time is taken out of both, since its noise is
larger than either.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from timing import HEADER, row

from deepinfer_gen import LLM, SamplingParams
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import Model
from deepinfer_gen.runtime.model.step_counts import StepCounts

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
        words = word_ids(llm, Path(arguments.engine))
        for batch in (1, 4, 16):
            # Each prompt walks through the vocabulary from a place of its own, and each token of it is another one.
            prompts = [[words[(7 * i + 5 * j) % len(words)] for j in range(arguments.prompt_len)] for i in range(batch)]
            compare(llm, layout["block"]["tokens"], prompts, arguments.output_len, arguments.runs)


def word_ids(llm: LLM, engine: Path) -> list[int]:
    """The vocabulary of the engine's model without the ids that stand for no text."""
    plan = json.loads((engine / "plan.json").read_text())["values"]
    signs = {plan[f"model.config.{name}"]["value"] for name in ("image_token_id", "dspark_noise_token_id")}
    signs.update(llm.get_tokenizer().all_special_ids)
    return [token for token in range(plan["model.config.vocab_size"]["value"]) if token not in signs]


def compare(llm: LLM, block_size: int, prompts: list[list[int]], output_len: int, runs: int) -> None:
    """Three rows: prefill, decode, and the time outside the model per decode step; engine beside loop."""
    batch, prompt_len = len(prompts), len(prompts[0])
    model = TimedModel(llm)
    plain = PlainLoop(llm, model, block_size, prompt_len + output_len)
    engine_times, plain_times = [], []
    for _ in range(runs + 1):
        tokens, measured = engine_run(llm, model, prompts, output_len)
        engine_times.append(measured)
        expected, measured = plain.run(prompts, output_len)
        plain_times.append(measured)
        if tokens != expected:
            sys.exit("the engine and the plain loop differ in their tokens")
    model.restore()
    name, steps = f"{batch} × {prompt_len} + {output_len}", output_len - 1
    for label, field, divisor, unit in (
        ("prefill", "prefill", 1, "ms"),
        ("decode step", "decode", steps, "ms"),
        ("outside the model per decode step", "outside", steps, "us"),
    ):
        # The first run warms up.
        engine = [getattr(t, field) / divisor for t in engine_times[1:]]
        loop = [getattr(t, field) / divisor for t in plain_times[1:]]
        tokens_in_one = batch * (prompt_len if field == "prefill" else 1)
        speed = "" if field == "outside" else f": {tokens_in_one / statistics.median(engine):,.0f} tokens/s"
        print(row(f"{label}, {name}{speed}", engine, loop, "plain loop", unit), flush=True)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the prefill step, of all decode steps, and of the part of these that was not the model."""

    prefill: float
    decode: float
    outside: float


class TimedModel:
    """The engine's model with a clock around it."""

    def __init__(self, llm: LLM) -> None:
        self.worker = llm.llm_engine._worker
        self.model: Model = self.worker._model
        self.worker._model = self
        self.seconds = 0.0

    @property
    def counts(self) -> StepCounts:
        """What the latest step computed and wrote."""
        return self.model.counts

    def __call__(self, batch: ForwardBatch, cache: KVCache, output_tokens: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        logits = self.model(batch, cache, output_tokens)
        self.seconds += time.perf_counter() - start
        return logits

    def restore(self) -> None:
        self.worker._model = self.model


def engine_run(llm: LLM, model: TimedModel, prompts: list[list[int]], output_len: int) -> tuple[list[list[int]], Times]:
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False)
    llm.enqueue([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    engine = llm.llm_engine
    start = time.perf_counter()
    engine.step()
    prefilled, model.seconds = time.perf_counter(), 0.0
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    decode = time.perf_counter() - prefilled
    outputs.sort(key=lambda output: int(output.request_id))
    tokens = [output.outputs[0].token_ids for output in outputs]
    return tokens, Times(prefilled - start, decode, decode - model.seconds)


class PlainLoop:
    """Greedy generation with the engine's modules and cache layout, batches filled by hand."""

    def __init__(self, llm: LLM, model: TimedModel, block_size: int, longest: int) -> None:
        self.model = model
        self.cache: KVCache = llm.llm_engine._worker._cache
        self.blocks = -(-longest // block_size)

    def run(self, prompts: list[list[int]], output_len: int) -> tuple[list[list[int]], Times]:
        count = len(prompts)
        self.prompt_lengths = torch.tensor([len(p) for p in prompts])
        self.slots = torch.arange(1, count + 1)
        self.tables = torch.arange(1, count * self.blocks + 1).view(count, self.blocks)
        self.cache.zero_states(self.slots)
        start = time.perf_counter()
        newest = self.step(prompts, [0] * count)
        prefilled, self.model.seconds = time.perf_counter(), 0.0
        tokens = [newest]
        for step in range(output_len - 1):
            lengths = [len(p) + step for p in prompts]
            tokens.append(self.step([[t] for t in tokens[-1]], lengths, [p[-3:] for p in histories(prompts, tokens)]))
        decode = time.perf_counter() - prefilled
        transposed = [list(column) for column in zip(*tokens, strict=True)]
        return transposed, Times(prefilled - start, decode, decode - self.model.seconds)

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
            prefill_len=self.prompt_lengths,
            prefills=not any(starts),
            slot=self.slots,
            block_table=self.tables,
            history=torch.tensor(history if history is not None else [[-1, -1, -1]] * len(rows)),
        )
        with torch.inference_mode():
            return self.model(batch, self.cache, torch.from_numpy(ends - 1)).argmax(-1).tolist()


def histories(prompts: list[list[int]], tokens: list[list[int]]) -> list[list[int]]:
    """The ids before each sequence's newest token."""
    return [p + [column[i] for column in tokens[:-1]] for i, p in enumerate(prompts)]


if __name__ == "__main__":
    main()
