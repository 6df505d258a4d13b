"""Sequences run over paged caches without a scheduler: every test says itself which tokens make a step."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from step_batch import Row, batch_of, padding_row

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import Model

UNWRITTEN = 0xFF
"""Bytes of a float32 NaN: whoever reads what nobody wrote spoils its result."""


@dataclass
class Request:
    """One request: its ids so far, the length of its prompt, how many of them the caches hold, and where."""

    ids: list[int]
    slot: int
    prompt: int
    table: list[int] = field(default_factory=list)
    done: int = 0


class Driver:
    """Runs steps of chosen rows; blocks come from a shuffled free list, so that tables are fragmented."""

    def __init__(self, model: Model, layout: Mapping[str, Any], *, seed: int = 0, fill: int = 0) -> None:
        """Caches hold the byte ``fill``, also the slot of a sequence that begins."""
        self.model, self.layout, self.fill = model, layout, fill
        self.cache = KVCache(layout, torch.device("cpu"))
        self.cache.blocks[1:].fill_(fill)
        self.block_tokens = layout["block"]["tokens"]
        self.free = list(range(1, layout["block"]["count"]))
        random.Random(seed).shuffle(self.free)
        self.free_slots = list(range(1, layout["state"]["count"]))
        self.width = 1 + 400 // self.block_tokens

    def add(self, ids: Sequence[int]) -> Request:
        sequence = Request([int(i) for i in ids], self.free_slots.pop(), len(ids))
        self.cache.slots[sequence.slot].fill_(self.fill)
        return sequence

    def release(self, sequence: Request) -> None:
        self.free.extend(sequence.table)
        self.free_slots.append(sequence.slot)

    def batch(self, rows: Sequence[tuple[Request, int]], *, padding: Sequence[int] = ()) -> ForwardBatch:
        """The next ``count`` tokens of each sequence, then padding rows of the given lengths."""
        for sequence, count in rows:
            while len(sequence.table) * self.block_tokens < sequence.done + count:
                sequence.table.append(self.free.pop())
        made = [
            Row(sequence.ids, sequence.done, count, slot=sequence.slot, table=sequence.table, prefill=sequence.prompt)
            for sequence, count in rows
        ]
        return batch_of([*made, *map(padding_row, padding)], blocks=self.width)

    def step(
        self, rows: Sequence[tuple[Request, int]], *, padding: Sequence[int] = (), outputs: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run one step and return the logits of ``outputs``, otherwise of all its real tokens."""
        batch = self.batch(rows, padding=padding)
        wanted = torch.arange(sum(count for _, count in rows)) if outputs is None else outputs
        logits: torch.Tensor = self.model(batch, self.cache, wanted)
        for sequence, count in rows:
            sequence.done += count
        return logits

    def prefill(self, sequence: Request, chunk: int | None = None) -> torch.Tensor:
        """All remaining tokens in chunks; logits of every token."""
        parts = []
        while sequence.done < len(sequence.ids):
            count = min(chunk or len(sequence.ids), len(sequence.ids) - sequence.done)
            parts.append(self.step([(sequence, count)]))
        return torch.cat(parts)

    def greedy(self, sequences: Sequence[Request], first: Sequence[int], count: int) -> list[list[int]]:
        """``count`` greedy tokens of each sequence, the first given, decoded together."""
        out = [[token] for token in first]
        for _ in range(count - 1):
            for sequence, tokens in zip(sequences, out, strict=True):
                sequence.ids.append(tokens[-1])
            best = self.step([(s, 1) for s in sequences]).argmax(1).tolist()
            for tokens, token in zip(out, best, strict=True):
                tokens.append(token)
        return out
