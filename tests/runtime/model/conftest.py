"""A hand-written plan of the tiny model, and a driver that runs sequences over paged caches without a scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deepinfer_gen.specs
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.model import Model, load_model
from deepinfer_gen.runtime.plan_types import (
    DraftPlan,
    EngramPlan,
    KernelConfig,
    LayerPlan,
    ModelPlan,
    Region,
    RopePlan,
    YocoPlan,
)

ORACLE = Path(__file__).parents[2] / "oracle"
WINDOW, HEAD_DIM, INDEX_DIM, NUM_LAYERS, DRAFT_LAYERS = 128, 64, 32, 10, 3
RATIOS = (0, 0, 2, 2, 2, 2, 1, 1, 1, 1)
KV_SOURCES = (None, None, 2, 2, 4, 4, 6, 6, 6, 6)
INDEX_SOURCES = (None, None, 2, 2, 4, 4, 6, 6, 8, 8)

TILES: Mapping[str, Mapping[str, int]] = {
    "linear": {"tokens": 512},
    "hyper_connection": {"tokens": 512},
    "kv_scatter": {"rows": 256},
    "sparse_attention": {"queries": 64},
    "compressor": {"tokens": 256},
    "index_scores": {"queries": 64, "entries": 256},
    "moe_experts": {"tokens": 64},
    "engram_gather": {"tokens": 256},
}
SMALL_TILES: Mapping[str, Mapping[str, int]] = {
    "linear": {"tokens": 7},
    "hyper_connection": {"tokens": 5},
    "kv_scatter": {"rows": 3},
    "sparse_attention": {"queries": 4},
    "compressor": {"tokens": 3},
    "index_scores": {"queries": 6, "entries": 13},
    "moe_experts": {"tokens": 2},
    "engram_gather": {"tokens": 9},
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return Path(next(iter(deepinfer_gen.specs.__path__))) / "models" / "tiny-v41"


@pytest.fixture(scope="session")
def oracle() -> Mapping[str, Any]:
    with np.load(ORACLE / "reference_f32nq.npz") as data:
        return dict(data)


@pytest.fixture(scope="session")
def layer_oracle() -> Mapping[str, Any]:
    with np.load(ORACLE / "layers_p129_f32nq.npz") as data:
        return dict(data)


def kernel_table(tiles: Mapping[str, Mapping[str, int]]) -> dict[str, KernelConfig]:
    return {name: KernelConfig(name, "reference", {}, tile, 1, 1, 0, "test") for name, tile in tiles.items()}


@dataclass(frozen=True)
class TinyEngine:
    """The parts of a generated folder that the model reads, for the sizes below."""

    plan: ModelPlan
    layout: dict[str, Any]


def tiny_engine(
    oracle: Mapping[str, Any],
    *,
    block: int = 16,
    blocks: int = 256,
    slots: int = 20,
    nextn_room: int = 0,
    nextn: int = 0,
    shift: int = 0,
    yoco: YocoPlan | None = None,
) -> TinyEngine:
    """Plan and layout by hand: ``nextn_room`` lengthens the rings, ``shift`` moves every state region but the first.

    With ``nextn`` the engine drafts: three more layers behind the backbone, and rings with room for as many tokens.
    """
    nextn_room = max(nextn_room, nextn)
    ring, accumulators = WINDOW + nextn_room + 1, 2 + nextn_room
    state: list[dict[str, Any]] = []
    total = NUM_LAYERS + (DRAFT_LAYERS if nextn else 0)
    offset = 0

    def state_region(name: str, kind: str, layer: int, rows: int, row_bytes: int) -> Region:
        nonlocal offset
        size = rows * row_bytes
        padding = -size % 16
        state.append({"name": name, "kind": kind, "layer": layer, "format": "fp32", "offset": offset,
                      "bytes": size + padding, "padding": padding, "rows": rows, "row_bytes": row_bytes,
                      "stored": kind == "swa" and layer < 6})  # fmt: skip
        region = Region(offset, rows, row_bytes, "fp32")
        offset += size + padding + shift
        return region

    swa = [state_region(f"swa.{i}", "swa", i, ring, HEAD_DIM * 4) for i in range(total)]
    ca = {i: state_region(f"ca_state.{i}", "ca_state", i, accumulators, HEAD_DIM * 8) for i in (2, 4)}
    regions: list[dict[str, Any]] = []
    main: dict[int, Region] = {}
    index: dict[int, Region] = {}
    place = 0
    for source in (2, 4, 6):
        rows = block // RATIOS[source]
        main[source] = Region(place, rows, HEAD_DIM * 4, "fp32")
        index[source] = Region(place + rows * HEAD_DIM * 4, rows, INDEX_DIM * 4, "fp32")
        size = rows * (HEAD_DIM + INDEX_DIM) * 4
        regions.append({"name": f"kv.{source}", "layer": source, "ratio": RATIOS[source], "offset": place,
                        "bytes": size, "padding": 0, "main": _entry(main[source]),
                        "index": _entry(index[source])})  # fmt: skip
        place += size
    layout = {
        "block": {"tokens": block, "bytes": place, "count": blocks, "regions": regions},
        "state": {"slot_bytes": offset, "count": slots, "regions": state},
    }
    engrams = {
        layer: EngramPlan(
            rows,
            tuple(int(v) for v in oracle["engram_multipliers"][i]),
            tuple(int(v) for v in oracle["engram_primes"][i]),
            tuple(int(v) for v in oracle["engram_offsets"][i]),
        )
        for i, (layer, rows) in enumerate(((1, 6126), (4, 6332)))
    }
    layers = tuple(
        LayerPlan(
            index=i,
            prefix=f"layers.{i}",
            ratio=RATIOS[i],
            experts=16,
            experts_per_token=3,
            rope="compressed" if RATIOS[i] else "base",
            kv_source=KV_SOURCES[i],
            index_source=INDEX_SOURCES[i],
            candidate_role={6: "source", 8: "consumer"}.get(i, "none"),
            engram=engrams.get(i),
            stored=i < 6,
            swa=swa[i],
            ca_state=ca.get(i),
            main=main.get(KV_SOURCES[i] or -1),
            index_keys=index.get(KV_SOURCES[i] or -1),
        )
        for i in range(NUM_LAYERS)
    )
    drafting = tuple(
        LayerPlan(
            index=i,
            prefix=f"mtp.{i - NUM_LAYERS}",
            ratio=0,
            experts=8,
            experts_per_token=2,
            rope="base",
            kv_source=None,
            index_source=None,
            candidate_role="none",
            engram=None,
            stored=False,
            swa=swa[i],
            ca_state=None,
            main=None,
            index_keys=None,
        )
        for i in range(NUM_LAYERS, total)
    )
    draft = DraftPlan(nextn, 5, 510, (7, 8, 9), drafting) if nextn else None
    rope = {"base": RopePlan(10000, 1, 0, 0), "compressed": RopePlan(160000, 16, 0, 2)}
    return TinyEngine(
        ModelPlan("tiny-v41", "float32_unquantized", CONSTANTS, rope, yoco, layers, draft, None, False), layout
    )


def _entry(region: Region) -> dict[str, Any]:
    return {"format": region.format, "offset": region.offset, "rows": region.rows, "row_bytes": region.row_bytes}


CONSTANTS: Mapping[str, int | float | str] = {
    "vocab_size": 512, "hidden_size": 128, "num_attention_heads": 4, "head_dim": HEAD_DIM, "qk_rope_head_dim": 16,
    "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2, "rms_norm_eps": 1e-20, "moe_intermediate_size": 64,
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3, "routed_scaling_factor": 1.5,
    "swiglu_limit": 2.0, "sliding_window": WINDOW, "index_n_heads": 16, "index_head_dim": INDEX_DIM, "index_topk": 24,
    "candidate_topk_blocks": 6, "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "engram_max_ngram_size": 4, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 259, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    "expert_dtype": "fp4", "max_positions": 512, "n_mtp_layers_in_checkpoint": 3, "dspark_num_target_layers": 3,
    "dspark_n_routed_experts": 8, "dspark_markov_rank": 32,
    "weight_tile_rows": 32, "weight_tile_columns": 32,
}  # fmt: skip


@pytest.fixture(scope="session")
def engine(oracle: Mapping[str, Any]) -> TinyEngine:
    return tiny_engine(oracle)


@pytest.fixture(scope="session")
def model(engine: TinyEngine, checkpoint: Path) -> Model:
    return load_model(engine.plan, kernel_table(TILES), checkpoint)


@pytest.fixture
def make_driver(model: Model, engine: TinyEngine) -> Any:
    """``make_driver(engine=..., model=...)`` gives a fresh driver over fresh caches."""

    def make(engine: TinyEngine = engine, model: Model = model) -> Driver:
        return Driver(model, engine.layout)

    return make


UNWRITTEN = 0xFF
"""Bytes of a float32 NaN: whoever reads what nobody wrote spoils its result."""


@pytest.fixture(scope="session")
def truncated(oracle: Mapping[str, Any], checkpoint: Path) -> Callable[..., Driver]:
    """``truncated(mode, cut, keep)`` gives a driver over caches that earlier owners left full of NaN.

    With ``targets`` it drafts five tokens from the features of these layers.
    """

    @cache
    def build(mode: str, cut: int, keep: int, targets: tuple[int, ...]) -> tuple[TinyEngine, Model]:
        engine = tiny_engine(oracle, nextn=5 if targets else 0, yoco=YocoPlan(mode, cut, keep))
        plan = engine.plan
        if plan.draft:
            plan = replace(plan, draft=replace(plan.draft, target_layers=targets))
        return engine, load_model(plan, kernel_table(TILES), checkpoint)

    def make(mode: str = "compact", cut: int = 6, keep: int = 140, targets: tuple[int, ...] = ()) -> Driver:
        engine, model = build(mode, cut, keep, targets)
        return Driver(model, engine.layout, fill=UNWRITTEN)

    return make


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
        ids, positions, row_of, history, tables = [], [], [], [], []
        for r, (sequence, count) in enumerate(rows):
            ids += sequence.ids[sequence.done : sequence.done + count]
            positions += range(sequence.done, sequence.done + count)
            row_of += [r] * count
            history.append(([-1] * 3 + sequence.ids[: sequence.done])[-3:])
            tables.append(sequence.table + [0] * (self.width - len(sequence.table)))
        for r, count in enumerate(padding, len(rows)):
            ids += [0] * count
            positions += range(count)
            row_of += [r] * count
            history.append([-1] * 3)
            tables.append([0] * self.width)
        lengths = [c for _, c in rows] + list(padding)
        step = SimpleNamespace(
            input_ids=np.array(ids, np.int32),
            positions=np.array(positions, np.int32),
            row_of_token=np.array(row_of, np.int32),
            q_len=np.array(lengths, np.int32),
            k_len=np.array([s.done + c for s, c in rows] + list(padding), np.int32),
            prefill_len=np.array([s.prompt for s, _ in rows] + [0] * len(padding), np.int32),
            slot=np.array([s.slot for s, _ in rows] + [0] * len(padding), np.int32),
            block_table=np.array(tables, np.int32).reshape(-1, self.width),
            history=np.array(history, np.int32).reshape(-1, 3),
        )
        return ForwardBatch.from_step(step, torch.device("cpu"))

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


@pytest.fixture(scope="session")
def helpers() -> SimpleNamespace:
    """The plan builders, for tests that change them."""
    return SimpleNamespace(
        TinyEngine=TinyEngine,
        tiny_engine=tiny_engine,
        kernel_table=kernel_table,
        tiles=TILES,
        small_tiles=SMALL_TILES,
        replace=replace,
    )


@pytest.fixture(scope="session")
def drafts() -> Mapping[str, Any]:
    """The reference's drafts and speculative transcripts."""
    with np.load(ORACLE / "drafts_f32nq.npz") as data:
        return dict(data)


@pytest.fixture(scope="session")
def drafting_engine(oracle: Mapping[str, Any]) -> TinyEngine:
    return tiny_engine(oracle, nextn=5)


@pytest.fixture(scope="session")
def drafting_model(drafting_engine: TinyEngine, checkpoint: Path) -> Model:
    return load_model(drafting_engine.plan, kernel_table(TILES), checkpoint)


@pytest.fixture
def make_drafting_driver(drafting_model: Model, drafting_engine: TinyEngine) -> Any:
    """Fresh drivers over fresh caches of the engine that drafts."""
    return lambda: Driver(drafting_model, drafting_engine.layout)
