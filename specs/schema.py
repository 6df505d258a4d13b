"""The deployment spec: every key, its default, meaning, unit, status and engine types.

The models are the only list of spec keys; the editor schema (``schema.json``), the table of fields and the defaults of
``resolve`` are read from them. Rules between keys are in ``rules.py``.

Three words carry meaning everywhere. *Status*: a ``planned`` setting is refused when not at its default, because
nothing reads it yet. *Engine types*: a setting that means nothing for the engine's type is an error when written and
absent from its Plan (``limits.*`` excepted, so that the engines of one deployment can share them). *on, off*: a switch
may also be written ``true`` or ``false``.
"""

# Annotations are not postponed here: pydantic would have to evaluate the text of each one at import.

from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from deepinfer_gen.specs.schema_types import (
    DECODES,
    PREFILLS,
    VOTES,
    Burst,
    Gain,
    NumBlocks,
    Section,
    SlotsRatio,
    Survival,
    Switch,
    Text,
    UsageLimit,
    YocoMode,
    setting,
)  # fmt: skip

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
_MAX_RANKS = 4096
_MAX_SEQS = 65_536
_MAX_TOKENS = 2**24

MainFormat = Literal["auto", "nvfp4_g16", "bf16", "fp32"]
IndexFormat = Literal["auto", "mxfp4_g32", "bf16", "fp32"]
WindowFormat = Literal["auto", "mxfp8_g32", "bf16", "fp32"]


class Engine(Section):
    """What is built."""

    name: Text = setting(..., "names the generated folder", pattern=NAME_PATTERN)
    type: Literal["NORMAL", "PROMPT", "COMPLETION"] = setting(
        "NORMAL", "NORMAL prefills and decodes, PROMPT only prefills, COMPLETION only decodes"
    )


class Parallel(Section):
    """How the model is spread over ranks. Ranks = dp x cp; a group of ep ranks shares the experts."""

    dp: int = setting(
        1, "attention data parallelism: ranks with their own sequences", unit="ranks", ge=1, le=_MAX_RANKS
    )
    ep: int = setting(
        1, "expert parallelism: ranks that share one copy of the experts", unit="ranks", ge=1, le=_MAX_RANKS
    )
    cp: int = setting(
        1, "prefill context parallelism (mirror split)", unit="ranks", types=PREFILLS, ge=1, le=_MAX_RANKS
    )
    dispatch: Literal["ragged", "padded"] = setting(
        "ragged",
        "ragged: row counts travel with the data; padded: equal splits, the group agrees on a graph size",
    )
    engram_placement: Literal["sharded", "host", "replicated"] | None = setting(
        None,
        "where the Engram tables live: split over the EP group, in host memory, or whole on every rank",
        rule="replicated on cpu, else sharded",
    )


class Limits(Section):
    """What the engine accepts. The last three limit a prefill step; all are accepted for every engine type."""

    max_num_seqs: int = setting(..., "sequences that run at once", unit="sequences", ge=1, le=_MAX_SEQS)
    max_model_len: int = setting(..., "longest sequence, prompt and output", unit="tokens", ge=2, le=_MAX_TOKENS)
    max_num_batched_tokens: int | None = setting(
        None,
        "prompt tokens of one prefill step",
        unit="tokens",
        rule="max(2 * cp, min(8192, max_num_prompts * max_model_len))",
        ge=1,
        le=_MAX_TOKENS,
    )
    max_num_prompts: int | None = setting(
        None, "prompts of one prefill step", unit="sequences", rule="min(16, max_num_seqs)", ge=1, le=_MAX_SEQS
    )
    prefill_max_sum_seqlen_k: int | None = setting(
        None,
        "sum of the K lengths of one prefill step",
        unit="tokens",
        rule="max(max_model_len, 4 * max_num_batched_tokens)",
        ge=1,
        le=2**31 - 1,
    )


class Kv(Section):
    """The block KV cache: compressed rows of the KV source layers."""

    block_size: int = setting(
        128, "tokens of a block, a multiple of every compression ratio", unit="tokens", ge=1, le=4096
    )
    num_blocks: NumBlocks = setting(
        "auto",
        "blocks of the pool, block 0 included; auto: what memory holds, at most what max_num_seqs needs",
        unit="blocks",
    )
    main_format: MainFormat = setting("auto", "format of compressed KV rows; auto follows numerics.policy")
    index_format: IndexFormat = setting("auto", "format of index keys; auto follows numerics.policy")
    swa_format: WindowFormat = setting("auto", "format of window rows in the state slots; auto follows numerics.policy")
    row_layout: Literal["interleaved", "split"] = setting(
        "interleaved", "interleaved: scales follow each row's data; split: all data of a region, then all scales"
    )
    store_grain: int = setting(128, "tokens between two stored states of a sequence", unit="tokens", ge=1, le=65_536)
    store_extra_tokens: int = setting(
        0, "tokens by which the store's view of the ring is longer", unit="tokens", status="planned", ge=0, le=65_536
    )


class State(Section):
    """The per-sequence state slots."""

    slots_ratio: SlotsRatio = setting(
        Fraction(6, 5), "state slots per running sequence, so that leaving ones can drain"
    )


class Speculative(Section):
    """Drafting and verification. nextn and the ring fix the layout, so every engine type has them."""

    nextn: int = setting(5, "draft tokens per step; 0 turns drafting off", unit="tokens", ge=0, le=64)
    verify: Literal["varlen", "fixed"] | None = setting(
        None,
        "varlen: verification lengths follow the drafts' confidence; fixed: always all drafts",
        types=DECODES,
        rule="fixed when nextn is 0 or determinism.batch_invariant is true, else varlen",
    )
    max_backtracking_tokens: int | None = setting(
        None, "positions that a rollback may rewrite", unit="tokens", rule="nextn + 1", ge=1, le=4096
    )
    prior_survival: Survival = setting(
        Fraction(4, 5),
        "survival p of a draft whose row has no history; draft k survives with p^k",
        types=DECODES,
    )
    min_gain: Gain = setting(
        Fraction(0),
        "relative predicted gain over all drafts below which the verification length stays uniform",
        types=DECODES,
    )


class Yoco(Section):
    """Prefill truncation: layers from the first consumer on see only the last rows of a prompt."""

    mode: YocoMode = setting(
        "compact", "compact drops the other rows, mask keeps but hides them, off computes all", types=PREFILLS
    )
    keep_tokens: int | None = setting(
        None,
        "rows at the end of a prompt that pass the cut",
        unit="tokens",
        types=PREFILLS,
        rule="max(140, sliding_window + max_backtracking_tokens)",
        ge=1,
        le=_MAX_TOKENS,
    )


class Schedule(Section):
    """When the engine prefills, decodes and preempts."""

    zos: Switch = setting("auto", "zero-overhead scheduling: the CPU schedules step N+1 while N runs (on, off, auto)")
    prefill_attempt_interval: int = setting(
        70, "decode steps after which all ranks together may prefill", unit="steps", types=VOTES, ge=1, le=1_000_000
    )
    prefill_any_attempt_interval: int = setting(
        100, "decode steps after which one rank may make all prefill", unit="steps", types=VOTES, ge=1, le=1_000_000
    )
    prefill_burst: Burst = setting(
        "auto",
        "consecutive prefill steps at one attempt point; auto: ceil(max_num_seqs / max_num_prompts) in 1..16",
        unit="steps",
        types=VOTES,
    )
    prefill_cache_usage_limit: UsageLimit = setting(
        Fraction(9, 10), "block usage above which no new prompt is admitted", types=PREFILLS
    )
    stop_preempted_request: bool = setting(
        True, "a preempted request ends with reason preempted; false recomputes it", types=DECODES
    )


class Graphs(Section):
    """Sizes of the captured decode graphs."""

    batch_size_interval: int = setting(
        8, "distance of graph sizes above the powers of two", unit="tokens", types=DECODES, ge=1, le=4096
    )


class Eplb(Section):
    """Expert load balancing."""

    min_redundant_per_rank: int | None = setting(
        None, "redundant experts per rank, at least", unit="experts", rule="4 for PROMPT, else 1", ge=0, le=1024
    )
    window_steps: int | None = setting(
        None,
        "steps over which expert load is counted",
        unit="steps",
        status="planned",
        rule="100 for PROMPT, else 1000",
        ge=1,
        le=10_000_000,
    )
    rebalance_steps: int | None = setting(
        None,
        "steps between two rebalances",
        unit="steps",
        status="planned",
        rule="1000 for PROMPT, else 10000",
        ge=1,
        le=10_000_000,
    )


class Determinism(Section):
    """Reproducibility."""

    batch_invariant: bool = setting(False, "a request's result does not depend on its batch; refuses verify: varlen")


class Sampling(Section):
    """The sampler."""

    force_topk: int = setting(0, "top-k applied to every request; 0: none", status="planned", ge=0, le=65_536)


class Kernels(Section):
    """Kernel launches."""

    pdl: Switch = setting("auto", "programmatic dependent launch (on, off, auto)", status="planned")


class Numerics(Section):
    """Arithmetic.

    ===================  =================  ===============  =============  =======================
    policy               weights            activations      cache          attention probabilities
    ===================  =================  ===============  =============  =======================
    released             as stored          fp8 per 32       quantised      bf16
    bf16                 decoded to bf16    bf16             quantised      bf16
    float32              decoded to fp32    fp32             quantised      fp32
    float32_unquantized  decoded to fp32    fp32             fp32           fp32
    ===================  =================  ===============  =============  =======================

    Weights are held, and counted in the memory plan, as stored under every policy; they are decoded when used.
    """

    policy: Literal["released", "bf16", "float32", "float32_unquantized"] | None = setting(
        None,
        "arithmetic of the forward pass: weights, activations, cache and attention probabilities",
        rule="cpu: float32; sm90: bf16; sm100 and ascend950: released",
    )


class Spec(Section):
    """One engine: one model, one hardware target, one deployment shape."""

    engine: Engine = Field(...)
    model: Text = setting(..., "a preset, or the path of a config.json below the spec's folder")
    hardware: Text = setting(
        ..., "cpu, sm90, sm100, ascend950, or the path of a hardware table below the spec's folder"
    )
    parallel: Parallel = Field(default_factory=Parallel)
    limits: Limits = Field(...)
    kv: Kv = Field(default_factory=Kv)
    state: State = Field(default_factory=State)
    speculative: Speculative = Field(default_factory=Speculative)
    yoco: Yoco = Field(default_factory=Yoco)
    schedule: Schedule = Field(default_factory=Schedule)
    graphs: Graphs = Field(default_factory=Graphs)
    eplb: Eplb = Field(default_factory=Eplb)
    determinism: Determinism = Field(default_factory=Determinism)
    sampling: Sampling = Field(default_factory=Sampling)
    structured_output: bool = setting(True, "requests may ask for grammar-constrained output", status="planned")
    kernels: Kernels = Field(default_factory=Kernels)
    numerics: Numerics = Field(default_factory=Numerics)


def spec_value(spec: Spec, key: str) -> Any:
    """The value under the dotted ``key``; ``None`` where the default is computed."""
    value: Any = spec
    for part in key.split("."):
        value = getattr(value, part)
    return value
