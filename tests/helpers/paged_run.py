"""A plan compiled for a checkpoint folder, and prompts run over paged caches with neither scheduler nor C++.

Where the plan drafts, every step is followed by a draft pass behind it, whose choices are the tokens that come next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
from deepinfer_gen.runtime.model.draft_context import DraftRows
from deepinfer_gen.runtime.model.dspark import Drafts
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


@dataclass(frozen=True, slots=True)
class PagedRun:
    """``logits`` [n, vocab_size] of all tokens; of the draft passes behind the ``anchors`` first tokens, one for each
    step, ``draft_logits`` [anchors, nextn, vocab_size] and ``confidences`` [anchors, nextn].
    """

    logits: Tensor
    anchors: list[int]
    draft_logits: Tensor
    confidences: Tensor


class PagedModel:
    """The model of a plan with caches of its own; each prompt gets a fresh slot and blocks in random order."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.model: Model = load_model(model_plan(plan), kernels(plan), folder)
        self.layout = layout_content(plan)
        self.history = plan.integer("engram.history_tokens")
        self.nextn = plan.integer("speculative.nextn")

    def logits(self, ids: Sequence[int], chunks: Sequence[int], last: int | None = None) -> Tensor:
        """Logits [n, vocab_size] of all tokens or the ``last`` ones, run in chunks of the given lengths.

        The lengths sum to the number of ``ids``.
        """
        first = 0 if last is None else len(ids) - last
        return torch.cat([logits for logits, _, _ in self._steps(ids, chunks, first)])

    def run(self, ids: Sequence[int], chunks: Sequence[int]) -> PagedRun:
        """Run ids [n + 1 + nextn] but the last 1 + nextn, in chunks of the given lengths, which sum to n.

        A draft pass behind p tokens starts from token p; its choices are the tokens after that, whatever its logits.
        """
        parts, drafts = [], []
        for logits, done, cache in self._steps(ids[: len(ids) - 1 - self.nextn], chunks, 0):
            parts.append(logits)
            if self.nextn:
                drafts.append(self._draft(ids, done, cache))
        vocabulary = parts[0].shape[1]
        return PagedRun(
            torch.cat(parts),
            list(accumulate(chunks)) if self.nextn else [],
            torch.cat([d.logits for d in drafts]) if drafts else torch.empty(0, 0, vocabulary),
            torch.cat([d.confidence_logits for d in drafts]) if drafts else torch.empty(0, 0),
        )

    def _steps(self, ids: Sequence[int], chunks: Sequence[int], first: int) -> Iterator[tuple[Tensor, int, KVCache]]:
        """After each chunk: logits of its tokens from place ``first`` on, the tokens run so far, and the cache."""
        if sum(chunks) != len(ids):
            raise ValueError(f"the chunks hold {sum(chunks)} tokens, the prompt {len(ids)}")
        cache = KVCache(self.layout, torch.device("cpu"))
        block_tokens = self.layout["block"]["tokens"]
        table = random.Random(len(ids)).sample(range(1, self.layout["block"]["count"]), -(-len(ids) // block_tokens))
        start = 0
        for count in chunks:
            batch = batch_of([Row(ids, start, count, slot=1, table=table)], history=self.history)
            wanted = torch.arange(min(max(first - start, 0), count), count)
            logits = self.model(batch, cache, wanted)
            start += count
            yield logits, start, cache

    def _draft(self, ids: Sequence[int], anchor: int, cache: KVCache) -> Drafts:
        def choose(logits: Tensor, draft: int, _rows: Tensor) -> Tensor:
            return torch.tensor([ids[anchor + 1 + draft]])

        rows = DraftRows(torch.tensor([ids[anchor]]), torch.tensor([anchor]), torch.tensor([1]))
        return self.model.draft(rows, cache, choose)
