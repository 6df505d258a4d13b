"""Types of the generated ``model_plan.py`` and ``kernels.py``: the shape of what the compiler decided.

The runtime derives none of these values; it reads them. All offsets and sizes are bytes unless the name says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scales:
    """Where a quantised region keeps data and scales apart, within each row or behind all rows.

    Row r has ``data_bytes`` of data at the region's ``offset`` + r * ``data_stride`` and ``bytes`` of scales at this
    ``offset`` + r * ``stride``.
    """

    offset: int
    bytes: int
    stride: int
    data_bytes: int
    data_stride: int


@dataclass(frozen=True, slots=True)
class Region:
    """Rows of one kind inside a state slot (``rows`` is a ring) or inside a KV block (``rows`` per block).

    ``row_bytes`` are those of data and scales; a format without scales has rows that follow each other.
    """

    offset: int
    rows: int
    row_bytes: int
    format: str
    scales: Scales | None = None


@dataclass(frozen=True, slots=True)
class RopePlan:
    """A rotary table: ``theta`` and, when ``factor`` is not 1, frequency-only YaRN between ``low`` and ``high``."""

    theta: int
    factor: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class EngramPlan:
    """Hash tables of one Engram layer; lists run over (order, head) with the head fastest."""

    rows: int
    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer; ``ratio`` 0 is window only. A sharing layer's ``main`` and ``index_keys`` are its source's.

    Its tensors are named ``prefix.*`` in the checkpoint; it has ``experts`` routed experts, of which each token uses
    ``experts_per_token``.
    """

    index: int
    prefix: str
    ratio: int
    experts: int
    experts_per_token: int
    rope: str
    kv_source: int | None
    index_source: int | None
    candidate_role: str
    engram: EngramPlan | None
    stored: bool
    swa: Region
    ca_state: Region | None
    main: Region | None
    index_keys: Region | None

    @property
    def is_kv_source(self) -> bool:
        """Whether it stores the block KV that it reads."""
        return self.kv_source == self.index

    @property
    def is_index_source(self) -> bool:
        """Whether it makes the selection that it attends to."""
        return self.index_source == self.index


@dataclass(frozen=True, slots=True)
class YocoPlan:
    """Prefill truncation: from layer ``first_consumer_layer`` on, only the last ``keep_tokens`` rows of a prompt run.

    ``mode`` is ``compact`` (other rows are dropped) or ``mask`` (kept, but invisible to the window).
    """

    mode: str
    first_consumer_layer: int
    keep_tokens: int


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The drafter: ``layers`` draft ``block_size`` tokens in one pass, of which a step verifies ``nextn``.

    They read the attention inputs of the backbone's ``target_layers``; ``noise_token_id`` stands at the positions to be
    drafted. ``layers`` continue the numbering of the backbone's.
    """

    nextn: int
    block_size: int
    noise_token_id: int
    target_layers: tuple[int, ...]
    layers: tuple[LayerPlan, ...]


@dataclass(frozen=True, slots=True)
class ExpertStarts:
    """Routed experts of each EP rank: rank r reads those from entry r up to entry r + 1.

    ``draft`` is for the draft layers, empty where nothing is drafted.
    """

    backbone: tuple[int, ...]
    draft: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Every model constant that the runtime needs, by the released names, and the backbone's layers in order.

    ``yoco`` is None where every layer sees every prompt row, ``draft`` where nothing is drafted,
    ``expert_starts`` where one rank holds all experts. ``batch_invariant``: a request's bits depend on nothing else in
    the step.
    """

    preset: str
    policy: str
    constants: Mapping[str, int | float | str]
    rope: Mapping[str, RopePlan]
    yoco: YocoPlan | None
    layers: tuple[LayerPlan, ...]
    draft: DraftPlan | None
    expert_starts: ExpertStarts | None
    batch_invariant: bool


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """One kernel: ``implementation`` names the backend, ``static`` are compile-time arguments, ``tile`` its shape."""

    name: str
    implementation: str
    static: Mapping[str, int | str | bool]
    tile: Mapping[str, int]
    threads: int
    stages: int
    shared_bytes: int
    why: str
