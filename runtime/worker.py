"""Executes one scheduled step on the device: cache copies, forward, sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepinfer_gen.runtime.batch import BatchBuffer, ForwardBatch
from deepinfer_gen.runtime.device import Device
from deepinfer_gen.runtime.graphs import GraphTable
from deepinfer_gen.runtime.model.step_counts import StepCounts
from deepinfer_gen.runtime.request import Request
from deepinfer_gen.runtime.sampler import Sampled, Sampler, SamplingTable
from deepinfer_gen.runtime.scheduler_core import Int32, StepView

if TYPE_CHECKING:
    from deepinfer_gen.runtime.kv_cache import KVCache
    from deepinfer_gen.runtime.model.model import Model

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens of one step as ``commit`` takes them, and the rows (of the K sampled ones) that have log probabilities.

    ``tokens`` int32 [rows, 1]; ``counts`` int32 [rows], 0 for a row that yields nothing; ``sampled_rows`` [K]. ``work``
    is what the forward pass computed and wrote.
    """

    tokens: Int32
    counts: Int32
    sampled_rows: Sequence[int]
    sampled: Sampled
    work: StepCounts


class Worker:
    """One rank's execution. The device runs in order: everything of a step is queued, and the host waits once."""

    def __init__(
        self, device: Device, model: Model, cache: KVCache, sampler: Sampler, table: SamplingTable, graphs: GraphTable
    ) -> None:
        self._device = device
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._table = table
        self._graphs = graphs
        self._graph_batches: dict[int, BatchBuffer] = {}

    def copy_state(self, step: StepView) -> None:
        """Queue the step's block copies, state copies and state clearings, in this order."""
        for label, array, operation in (
            ("clone_blocks", step.clone_blocks, self._cache.clone_blocks),
            ("clone_states", step.clone_states, self._cache.clone_states),
            ("zero_states", step.zero_states, self._cache.zero_states),
        ):
            if len(array):
                index = torch.from_numpy(array.astype(np.int64))
                self._device.submit(label, partial(operation, index))

    def execute_model_step(
        self, step: StepView, requests: Sequence[Request], pre_sampler_sync: Callable[[StepView], None]
    ) -> StepTokens:
        """Run forward and sampling of ``step``; ``requests`` are those of its real rows, in row order."""
        q_len = step.q_len.tolist()
        batch = self._graph_batch(step, max(q_len)) if step.graph else ForwardBatch.from_step(step, _HOST)
        counts = step.samples[: len(requests)]
        rows = [row for row, count in enumerate(counts.tolist()) if count]
        ends, k_len = list(accumulate(q_len)), step.k_len.tolist()
        last_tokens = torch.from_numpy(np.array([ends[row] - 1 for row in rows], np.int64))
        parameters = self._table.rows([requests[row] for row in rows], [k_len[row] for row in rows])
        done: list[tuple[Tensor, StepCounts]] = []
        self._device.submit(
            "forward", lambda: done.append((self._model(batch, self._cache, last_tokens), self._model.counts))
        )
        sample = self._device.submit("sample", lambda: self._sampler.sample(done[0][0], parameters))
        pre_sampler_sync(step)
        sampled = sample.wait()
        tokens = np.zeros((len(requests), 1), np.int32)
        tokens[rows, 0] = sampled.tokens
        return StepTokens(tokens, counts, rows, sampled, done[0][1])

    def _graph_batch(self, step: StepView, longest_row: int) -> ForwardBatch:
        """The step in the tensors of its graph, which the last step in that graph no longer reads."""
        size, tokens, rows = step.graph, len(step.input_ids), len(step.q_len)
        self._graphs.check(size, total_q=step.total_q, tokens=tokens, rows=rows, longest_row=longest_row)
        buffer = self._graph_batches.get(size)
        if buffer is None:
            buffer = self._graph_batches[size] = BatchBuffer(step, _HOST)
        return buffer.fill(step)
