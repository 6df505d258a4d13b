"""A plan compiled for a checkpoint folder, and prompts run over paged caches with neither scheduler nor C++."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from spec_plan import spec_plan
from step_batch import Row, batch_of
from torch import Tensor

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import Model, load_model

_SPEC: Mapping[str, Any] = {
    "engine": {"name": "random-model", "type": "NORMAL"},
    "model": "config.json",
    "hardware": "cpu",
    "limits": {"max_num_seqs": 2},
    "speculative": {"nextn": 0},
    "yoco": {"mode": "off"},
    "schedule": {"zos": "off"},
    "numerics": {"policy": "float32_unquantized"},
}


def compile_plan(folder: Path, *, tokens: int, block: int, **fields: Any) -> Plan:
    """The plan of an engine for the config.json in ``folder``: CPU, float32, nothing quantised, drafted or cut.

    ``section__field=value`` changes the spec.
    """
    return spec_plan(folder, _SPEC, limits__max_model_len=tokens, kv__block_size=block, **fields)


class PagedModel:
    """The model of a plan with caches of its own; each prompt gets a fresh slot and blocks in random order."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.model: Model = load_model(model_plan(plan), kernels(plan), folder)
        self.layout = layout_content(plan)
        self.history = plan.integer("engram.history_tokens")

    def logits(self, ids: Sequence[int], chunks: Sequence[int], last: int | None = None) -> Tensor:
        """Logits [n, vocab_size] of all tokens or the ``last`` ones, run in chunks of the given lengths.

        The lengths sum to the number of ``ids``.
        """
        first = 0 if last is None else len(ids) - last
        cache = KVCache(self.layout, torch.device("cpu"))
        block_tokens = self.layout["block"]["tokens"]
        table = random.Random(len(ids)).sample(range(1, self.layout["block"]["count"]), -(-len(ids) // block_tokens))
        parts, start = [], 0
        for count in chunks:
            batch = batch_of([Row(ids, start, count, slot=1, table=table)], history=self.history)
            wanted = torch.arange(min(max(first - start, 0), count), count)
            parts.append(self.model(batch, cache, wanted))
            start += count
        if start != len(ids):
            raise ValueError(f"the chunks hold {start} tokens, the prompt {len(ids)}")
        return torch.cat(parts)
