"""Bytes that one step moves between memory and the compute units: weights, cache rows and Engram rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan
from deepinfer_gen.runtime.step_rows import Counts, Cut, StepRows, seen_by_queries


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of a step on one rank; ``expert_weights`` is an expectation where the routing was not given."""

    dense_weights: int
    expert_weights: float
    cache_read: int
    cache_written: int
    engram_rows: int

    @property
    def total(self) -> float:
        """All of them."""
        return sum(float(getattr(self, field.name)) for field in fields(self))


def expected_experts(slots: int, of: int, per_token: int, tokens: int) -> float:
    """Distinct experts among ``slots`` that ``tokens`` hit when each chooses ``per_token`` out of ``of`` uniformly."""
    return slots * (1.0 - (1.0 - per_token / of) ** tokens)


class BytesEstimator:
    """Adds up the Plan's sizes for a step, each read from memory once where a kernel can share it.

    Dense weights once; an expert once if a token chose it; window rows of earlier steps and index keys once per row;
    selected entries once per query. Activations and the step's own window rows stay in caches and are left out.
    """

    def __init__(self, model: ModelPlan, plan: Mapping[str, Mapping[str, Any]]) -> None:
        """``plan`` maps Plan keys to mappings with ``value``, as ``plan.json`` does."""
        self._model, self._constants = model, Constants.of(model)
        self._cut, self._plan = Cut(model), plan

    def step(self, rows: StepRows, *, chosen_experts: Mapping[int, int] | None = None) -> StepBytes:
        """Bytes of a step on one rank of an expert group whose ranks all run steps like this one.

        ``chosen_experts``: how many distinct experts of this rank were chosen in each layer that ran; without it, how
        many a uniform choice is expected to hit.
        """
        layers = [(layer, self._cut.queries(layer, rows)) for layer in self._model.layers]
        row = self._value("engram.tables_per_layer") * self._value("weights.engram_row_bytes")
        return StepBytes(
            dense_weights=self._dense(rows),
            expert_weights=self._experts(rows, chosen_experts),
            cache_read=sum(self._read(layer, queries, rows) for layer, queries in layers) + self._draft_read(rows),
            cache_written=sum(self._written(layer, queries, rows) for layer, queries in layers)
            + self._draft_written(rows),
            engram_rows=sum(int(queries.sum()) * row for layer, queries in layers if layer.engram),
        )

    def _value(self, key: str) -> int:
        value: int = self._plan[key]["value"]
        return value

    def _dense(self, rows: StepRows) -> int:
        value, total = self._value, rows.tokens * self._value("weights.embed_row_bytes")
        for layer in self._model.layers:
            if layer.is_kv_source and rows.tokens:
                total += value("weights.kv_source.bytes")
                total += value("weights.gated_source.bytes") if layer.ca_state else 0
            if self._cut.queries(layer, rows).any():
                total += value("weights.layer.bytes") + value("weights.gate.bytes")
                total += value("weights.index_source.bytes") if layer.is_index_source else 0
                total += value("weights.engram.bytes") if layer.engram else 0
        if rows.logits_rows:
            total += value("weights.globals.head.bytes") + value("weights.globals.norm.bytes")
        draft = self._model.draft
        if draft and self._cut.targets(rows).any():
            total += value("weights.draft_first.bytes")
            if rows.drafting.any():
                total += len(draft.layers) * (value("weights.layer.bytes") + value("weights.draft_gate.bytes"))
                total += value("weights.draft_last.bytes")
                total += int(rows.drafting.sum()) * draft.block_size * value("weights.embed_row_bytes")
            else:
                total += len(draft.layers) * value("weights.layer.attn.wkv.bytes")
        return total

    def _experts(self, rows: StepRows, chosen: Mapping[int, int] | None) -> float:
        expert = self._value("weights.expert.bytes")
        if chosen is not None:
            return float(sum(chosen.values()) * expert)
        hit = sum(
            self._expected(layer, int(self._cut.queries(layer, rows).sum()), "parallel.local_experts")
            for layer in self._model.layers
        )
        if draft := self._model.draft:
            positions = int(rows.drafting.sum()) * draft.block_size
            hit += sum(self._expected(layer, positions, "eplb.draft.local_experts") for layer in draft.layers)
        return hit * expert

    def _expected(self, layer: LayerPlan, tokens: int, slots_key: str) -> float:
        """Distinct experts of this rank; redundant copies share the choices of their expert."""
        slots, ranks = self._value(slots_key), self._value("parallel.ep")
        return expected_experts(slots, slots * ranks, layer.experts_per_token, tokens * ranks)

    def _read(self, layer: LayerPlan, queries: Counts, rows: StepRows) -> int:
        """Window rows of earlier steps, an open group's accumulators, selected entries and index keys of one layer."""
        c, some = self._constants, queries > 0
        before = (self._cut.held(layer, rows) - queries).clip(min=0, max=c.sliding_window - 1)
        total = int((some * before).sum()) * layer.swa.row_bytes
        if layer.ca_state and layer.is_kv_source:
            total += int(((rows.keys - rows.queries) % layer.ratio).sum()) * layer.ca_state.row_bytes
        if layer.main:
            chosen = seen_by_queries(queries, rows.keys, ratio=layer.ratio, most=c.index_topk)
            total += chosen * layer.main.row_bytes
        if layer.index_keys and layer.is_index_source:
            scored = some * (rows.keys // layer.ratio)
            if layer.candidate_role == "consumer":
                # At most the candidates of every query of the row.
                scored = np.minimum(scored, queries * c.candidate_topk_blocks * c.candidate_block_size)
            total += int(scored.sum()) * layer.index_keys.row_bytes
        return total

    def _written(self, layer: LayerPlan, queries: Counts, rows: StepRows) -> int:
        """Window rows that survive in the ring, and what a KV source completes or keeps open, of all rows."""
        total = int(queries.clip(max=layer.swa.rows).sum()) * layer.swa.row_bytes
        if layer.main and layer.index_keys and layer.is_kv_source:
            completed = rows.keys // layer.ratio - (rows.keys - rows.queries) // layer.ratio
            total += int(completed.sum()) * (layer.main.row_bytes + layer.index_keys.row_bytes)
            if layer.ca_state:
                total += int(rows.queries.clip(max=layer.ca_state.rows).sum()) * layer.ca_state.row_bytes
        return total

    def _draft_read(self, rows: StepRows) -> int:
        draft = self._model.draft
        if draft is None:
            return 0
        window = rows.drafting * self._cut.held_by_drafts(rows).clip(max=self._constants.sliding_window)
        return sum(int(window.sum()) * layer.swa.row_bytes for layer in draft.layers)

    def _draft_written(self, rows: StepRows) -> int:
        draft = self._model.draft
        if draft is None:
            return 0
        return sum(
            int(self._cut.targets(rows).clip(max=layer.swa.rows).sum()) * layer.swa.row_bytes for layer in draft.layers
        )
