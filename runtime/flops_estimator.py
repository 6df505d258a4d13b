"""Floating point operations of one step, for the share of the device's peak that a step reaches (MFU)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan
from deepinfer_gen.runtime.step_rows import Counts, Cut, StepRows, seen_by_queries


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of a step by operator; ``draft`` holds all of the draft layers, their heads included."""

    dense: int = 0
    experts: int = 0
    hyper_connections: int = 0
    attention: int = 0
    compressor: int = 0
    indexer: int = 0
    engram: int = 0
    head: int = 0
    draft: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))


class FlopsEstimator:
    """Multiplies the Plan's ``flops.*`` with the counts of a step and the roles of the layers.

    What the model's definition demands is counted: no padding, no second pass, and an index source inside candidates
    scores these only. Under expert parallelism a rank's own tokens count, whoever computes their experts.
    """

    def __init__(self, model: ModelPlan, plan: Mapping[str, Mapping[str, Any]]) -> None:
        """``plan`` maps Plan keys to mappings with ``value``, as ``plan.json`` does."""
        self._model, self._constants = model, Constants.of(model)
        self._cut = Cut(model)
        self._cost = {
            key.removeprefix("flops."): int(entry["value"]) for key, entry in plan.items() if key.startswith("flops.")
        }

    def step(self, rows: StepRows) -> StepFlops:
        """FLOPs of the backbone on all queries, or on the kept ones behind the cut, and of the drafts."""
        cost, parts = self._cost, dict.fromkeys((field.name for field in fields(StepFlops)), 0)
        for layer in self._model.layers:
            queries = self._cut.queries(layer, rows)
            for part in ("dense", "experts", "hyper_connections"):
                parts[part] += int(queries.sum()) * cost[part]
            parts["attention"] += self._attended(layer, queries, rows) * cost["attended_row"]
            if layer.is_kv_source:
                # The shared entries are those of all rows, kept or not.
                parts["compressor"] += rows.tokens * cost["kv_source"]
                parts["compressor"] += rows.tokens * cost["gated_source"] if layer.ca_state else 0
            if layer.is_index_source:
                parts["indexer"] += int(queries.sum()) * cost["index_source"]
                parts["indexer"] += self._scored(layer, queries, rows) * cost["scored_entry"]
            if layer.engram:
                parts["engram"] += int(queries.sum()) * cost["engram"]
        parts["head"] = rows.logits_rows * cost["logits_row"]
        parts["draft"] = self._draft(rows)
        return StepFlops(**parts)

    def _attended(self, layer: LayerPlan, queries: Counts, rows: StepRows) -> int:
        """Window rows and selected entries that the queries of a layer attend to."""
        c = self._constants
        attended = seen_by_queries(queries, self._cut.held(layer, rows), most=c.sliding_window)
        if layer.ratio:
            attended += seen_by_queries(queries, rows.keys, ratio=layer.ratio, most=c.index_topk)
        return attended

    def _scored(self, layer: LayerPlan, queries: Counts, rows: StepRows) -> int:
        c = self._constants
        inside = c.candidate_topk_blocks * c.candidate_block_size if layer.candidate_role == "consumer" else None
        return seen_by_queries(queries, rows.keys, ratio=layer.ratio, most=inside)

    def _draft(self, rows: StepRows) -> int:
        """Window rows of every target row, then a block of positions for each row that drafts."""
        draft = self._model.draft
        if draft is None:
            return 0
        cost, blocks = self._cost, int(rows.drafting.sum())
        held = self._cut.held_by_drafts(rows).clip(max=self._constants.sliding_window)
        window = (rows.drafting * held).sum()
        # Each position attends to the same window and to the whole block.
        attended = draft.block_size * (int(window) + blocks * draft.block_size) * len(draft.layers)
        return (
            int(self._cut.targets(rows).sum()) * cost["draft_target_row"]
            + blocks * draft.block_size * cost["draft_position"]
            + attended * cost["attended_row"]
            + blocks * draft.nextn * cost["draft_logits_row"]
        )
