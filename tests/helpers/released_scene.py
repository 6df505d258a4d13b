"""Layers of the released widths on the CPU: eight experts stand for 384, and caches are as a long context fills them.

The plan and the layout are the compiler's; only the number of experts is changed, so that a layer fits the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from step_batch import Row, batch_of
from synthetic_weights import RandomTensors

from deepinfer_gen.codegen.sources import plan_spec_unfit
from deepinfer_gen.codegen.views.layout import layout_content
from deepinfer_gen.codegen.views.model import kernels, model_plan
from deepinfer_gen.runtime.kernels.operators import ReferenceOperators
from deepinfer_gen.runtime.kernels.reference.kv_scatter import kv_scatter
from deepinfer_gen.runtime.kv_cache import KVCache, RegionRows
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.numerics import NUMERICS
from deepinfer_gen.runtime.model.rope import rotary_table
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan
from deepinfer_gen.runtime.weights import TensorSource

EXPERTS = 8
_SPEC = """
engine: {{name: released-widths}}
model: deepseek-v4.1-flash
hardware: cpu
limits: {{max_num_seqs: 8, max_model_len: 20480}}
kv: {{num_blocks: {blocks}}}
speculative: {{nextn: 0}}
yoco: {{mode: "off"}}
schedule: {{zos: "off"}}
numerics: {{policy: {policy}}}
"""


@dataclass(frozen=True)
class Parts:
    """What the modules of a layer take, for one numerics policy."""

    plan: ModelPlan
    layout: Mapping[str, Any]
    constants: Constants
    operators: ReferenceOperators
    source: TensorSource

    def layer(self, index: int) -> LayerPlan:
        return self.plan.layers[index]


def released(folder: Path, policy: str, *, blocks: int = 200, seed: int = 0) -> Parts:
    """Plan and synthetic weights; ``folder`` is where the spec is written."""
    spec = folder / f"released-{policy}.yaml"
    spec.write_text(_SPEC.format(policy=policy, blocks=blocks), encoding="utf-8")
    compiled, _ = plan_spec_unfit(str(spec))  # the whole model does not fit this machine; one layer does
    whole = model_plan(compiled)
    plan = replace(
        whole,
        constants={**whole.constants, "n_routed_experts": EXPERTS},
        layers=tuple(replace(layer, experts=EXPERTS) for layer in whole.layers),
    )
    constants = Constants.of(plan)
    return Parts(
        plan,
        layout_content(compiled),
        constants,
        ReferenceOperators(kernels(compiled), NUMERICS[policy]),
        RandomTensors(plan, constants, seed),
    )


class Scene:
    """Sequences of given lengths whose caches hold random rows, in blocks that a shuffle has scattered."""

    def __init__(self, engine: Parts, held: Sequence[int], *, seed: int = 0) -> None:
        self.engine, self.held = engine, list(held)
        self.random = torch.Generator().manual_seed(seed)
        self.cache = KVCache(engine.layout, torch.device("cpu"))
        self.block_tokens = engine.layout["block"]["tokens"]
        free = (1 + torch.randperm(engine.layout["block"]["count"] - 1, generator=self.random)).tolist()
        width = -(-engine.constants.max_positions // self.block_tokens)
        # One block more than the held tokens fill, for what a step adds.
        counts = [n // self.block_tokens + 2 for n in held]
        self.tables = [[free.pop() for _ in range(count)] + [0] * (width - count) for count in counts]
        self.slots = list(range(1, len(self.held) + 1))
        self.rotary = {
            name: rotary_table(rope, engine.constants.qk_rope_head_dim, engine.constants.max_positions)
            for name, rope in engine.plan.rope.items()
        }

    def fill(self, layers: Sequence[int]) -> None:
        """Random rows in the window rings, accumulators and compressed entries of ``layers``."""
        filled = set()
        for layer in (self.engine.layer(i) for i in layers):
            for region in (layer.swa, layer.ca_state):
                if region:
                    rows = self.cache.slot_rows(region)
                    for slot in self.slots:
                        self._write(rows, slot, region.row_bytes)
            for region in (layer.main, layer.index_keys):
                if region and region not in filled:
                    filled.add(region)
                    rows = self.cache.block_rows(region)
                    for table in self.tables:
                        for block in table:
                            if block:
                                self._write(rows, block, region.row_bytes)

    def step(self, counts: Sequence[int], ngrams: torch.Tensor | None = None) -> StepContext:
        """The context of a step that appends ``counts`` tokens to the sequences; ids are 0."""
        rows = [
            Row([0] * (held + count), held, count, slot=slot, table=table, prefill=held)
            for held, count, slot, table in zip(self.held, counts, self.slots, self.tables, strict=True)
        ]
        return StepContext(batch_of(rows), self.cache, self.rotary, ngrams)

    def saved(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of all bytes, for ``restore`` and for looking at what was there before."""
        return self.cache.blocks.clone(), self.cache.slots.clone()

    def restore(self, saved: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.cache.blocks.copy_(saved[0])
        self.cache.slots.copy_(saved[1])

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random)

    def entry(self, layer: LayerPlan, row: int, entry: int) -> tuple[int, int]:
        """Block and row of a compressed entry, by the rule of the layout."""
        return self.tables[row][entry * layer.ratio // self.block_tokens], entry % (self.block_tokens // layer.ratio)

    def _write(self, rows: RegionRows, unit: int, row_bytes: int) -> None:
        """Random rows in all places of a unit."""
        c = self.engine.constants
        # A record holds an index key, a KV row, or KV and score.
        for dims in (c.index_head_dim, c.head_dim, 2 * c.head_dim):
            if rows.codec.encode(torch.zeros(1, dims)).nbytes == row_bytes:
                place = torch.arange(rows.rows)
                stored = rows.codec.encode(self.randn(rows.rows, dims))
                kv_scatter(rows, torch.full_like(place, unit), place, stored, rows=rows.rows)
                return
        raise AssertionError(f"no width of the model gives records of {row_bytes} bytes")
