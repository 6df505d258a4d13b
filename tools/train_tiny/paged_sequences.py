"""Sequences over an engine's paged caches without its scheduler: the caller says which tokens make a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from checkpoint_model import CheckpointModel
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.draft_context import DraftRows
from deepinfer_gen.runtime.model.dspark import Drafts

CHUNK_TOKENS = 128
"""Tokens that one sequence adds to a prefill step: many sequences a step, each with few tokens, keep memory small."""


@dataclass(slots=True)
class PagedSequence:
    """Ids so far, the length of the prompt, how many of the ids the caches hold (``done``), and where."""

    ids: list[int]
    prompt: int
    slot: int
    table: list[int] = field(default_factory=list)
    done: int = 0

    def forget(self, count: int) -> None:
        """Take back the last ``count`` tokens that were run: what they stored lies behind the end and is never read."""
        self.done -= count
        del self.ids[self.done :]


@dataclass(frozen=True, slots=True)
class _Step:
    """The arrays of a step as a scheduler lays them out (``runtime.batch.StepArrays``)."""

    input_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_of_token: NDArray[np.int32]
    q_len: NDArray[np.int32]
    k_len: NDArray[np.int32]
    prefill_len: NDArray[np.int32]
    slot: NDArray[np.int32]
    block_table: NDArray[np.int32]
    history: NDArray[np.int32]


class PagedSequences:
    """The caches of an engine and the sequences in them, as many as it was planned for."""

    def __init__(self, checkpoint: CheckpointModel) -> None:
        self.checkpoint = checkpoint
        layout, device = checkpoint.layout, torch.device("cpu")
        self.cache = KVCache(layout, device)
        self._block_tokens: int = layout["block"]["tokens"]
        self._free_blocks = list(range(1, layout["block"]["count"]))
        self._free_slots = list(range(1, layout["state"]["count"]))
        self._max_tokens = checkpoint.constant("max_positions")
        self._history = checkpoint.constant("engram_max_ngram_size") - 1
        self._device = device

    def begin(self, ids: Sequence[int]) -> PagedSequence:
        """A sequence whose prompt is ``ids``; nothing of it has been run."""
        slot = self._free_slots.pop()
        self.cache.zero_states(torch.tensor([slot]))
        return PagedSequence(list(ids), len(ids), slot)

    def end(self, sequence: PagedSequence) -> None:
        """Give its blocks and its slot back."""
        self._free_blocks += sequence.table
        self._free_slots.append(sequence.slot)

    def run(self, rows: Sequence[tuple[PagedSequence, int]], outputs: Sequence[int]) -> Tensor:
        """The next ``count`` ids of each sequence as one step.

        Returns float32 logits [K, vocab_size] of the step's tokens ``outputs`` (places in the joined rows).
        ``ValueError`` for a sequence that would grow past the engine's longest.
        """
        for sequence, count in rows:
            if sequence.done + count > self._max_tokens:
                raise ValueError(f"{sequence.done + count} tokens, the engine was planned for {self._max_tokens}")
            while len(sequence.table) * self._block_tokens < sequence.done + count:
                sequence.table.append(self._free_blocks.pop())
        batch = ForwardBatch.from_step(self._step(rows), self._device)
        logits: Tensor = self.checkpoint.model(batch, self.cache, torch.tensor(outputs, dtype=torch.int64))
        for sequence, count in rows:
            sequence.done += count
        return logits

    def chunk(self, sequences: Sequence[PagedSequence]) -> tuple[list[PagedSequence], list[int], list[int]]:
        """The next chunk of those that have ids to run: sequences, their counts, and where each ends in the step."""
        waiting = [sequence for sequence in sequences if sequence.done < len(sequence.ids)]
        counts = [min(CHUNK_TOKENS, len(sequence.ids) - sequence.done) for sequence in waiting]
        return waiting, counts, list(accumulate(counts))

    def prefill(self, sequences: Sequence[PagedSequence]) -> list[int]:
        """Run all ids of the sequences, a chunk of each per step; the likeliest next token of each."""
        best: dict[int, int] = {}
        while True:
            waiting, counts, ends = self.chunk(sequences)
            if not waiting:
                return [best[sequence.slot] for sequence in sequences]
            logits = self.run(list(zip(waiting, counts, strict=True)), [end - 1 for end in ends])
            best |= {sequence.slot: int(row.argmax()) for sequence, row in zip(waiting, logits, strict=True)}

    def draft(self, sequences: Sequence[PagedSequence], tokens: Sequence[int]) -> Drafts:
        """Drafts behind the newest ``tokens``, which stand at each sequence's ``done`` and have not been run."""
        rows = DraftRows(
            torch.tensor(tokens),
            torch.tensor([sequence.done for sequence in sequences]),
            torch.tensor([sequence.slot for sequence in sequences]),
        )
        return self.checkpoint.model.draft(rows, self.cache)

    def _step(self, rows: Sequence[tuple[PagedSequence, int]]) -> _Step:
        width, depth = max(len(sequence.table) for sequence, _ in rows), self._history
        starts = [sequence.done for sequence, _ in rows]
        counts = [count for _, count in rows]
        before = [([-1] * depth + sequence.ids[: sequence.done])[-depth:] for sequence, _ in rows]
        return _Step(
            input_ids=_array([i for s, count in rows for i in s.ids[s.done : s.done + count]]),
            positions=_array([start + i for start, count in zip(starts, counts, strict=True) for i in range(count)]),
            row_of_token=np.repeat(np.arange(len(rows), dtype=np.int32), counts),
            q_len=_array(counts),
            k_len=_array(starts) + _array(counts),
            prefill_len=_array([sequence.prompt for sequence, _ in rows]),
            slot=_array([sequence.slot for sequence, _ in rows]),
            block_table=_array([[*s.table, *[0] * (width - len(s.table))] for s, _ in rows]),
            history=_array(before).reshape(len(rows), depth),
        )


def _array(values: Sequence[int] | Sequence[list[int]]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
