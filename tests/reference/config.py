"""The constants of one engine, read from what ``module.constants()`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NORMAL, PROMPT, COMPLETION = "NORMAL", "PROMPT", "COMPLETION"


@dataclass(frozen=True, slots=True)
class Config:
    """EngineConfig by plain names. A constant that an engine type lacks has the value that makes its rule void."""

    engine_type: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_prompts: int
    prefill_max_sum_seqlen_k: int
    block_size: int
    num_blocks: int
    blocks_per_seq: int
    num_slots: int
    history: int
    nextn: int
    all_interval: int
    any_interval: int
    burst: int
    limit_numerator: int
    limit_denominator: int
    stop_preempted: bool
    cp_size: int
    graph_sizes: tuple[int, ...]
    graph_rows: tuple[int, ...]
    padded: bool
    varlen: bool
    prior: int  # u16, the confidence of a draft that nothing is known of
    min_gain: float
    places: int  # those that drain included

    @property
    def max_q(self) -> int:
        """Tokens that one row verifies at most."""
        return self.nextn + 1

    @property
    def alignment(self) -> int:
        """A chunk that is not a prompt's last one is a multiple of this."""
        return 2 * self.cp_size if self.cp_size > 1 else 1

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_size)

    def graph_index(self, total_q: int) -> int:
        """Index of the smallest graph of at least ``total_q`` tokens."""
        return next(i for i, size in enumerate(self.graph_sizes) if size >= total_q)

    @classmethod
    def from_constants(cls, values: Mapping[str, Any]) -> Config:
        """``values``: C++ name to integer, string or list of integers."""
        get = values.get
        sizes = tuple(get("kGraphSizes", ()))
        numerator, denominator = get("kMinGainNumerator", 0), get("kMinGainDenominator", 1)
        return cls(
            engine_type=values["kEngineType"],
            max_num_seqs=values["kMaxNumSeqs"],
            max_model_len=values["kMaxModelLen"],
            max_num_batched_tokens=get("kMaxNumBatchedTokens", 0),
            max_num_prompts=get("kMaxNumPrompts", 0),
            prefill_max_sum_seqlen_k=get("kPrefillMaxSumSeqlenK", 0),
            block_size=values["kBlockSize"],
            num_blocks=values["kNumBlocks"],
            blocks_per_seq=values["kBlocksPerSeq"],
            num_slots=values["kNumSlots"],
            history=values["kHistory"],
            nextn=values["kNextn"],
            all_interval=get("kPrefillAttemptInterval", 1),
            any_interval=get("kPrefillAnyAttemptInterval", 1),
            burst=get("kPrefillBurst", 1),
            limit_numerator=get("kPrefillCacheUsageLimitNumerator", 1),
            limit_denominator=get("kPrefillCacheUsageLimitDenominator", 1),
            stop_preempted=bool(get("kStopPreemptedRequest", 1)),
            cp_size=get("kCpSize", 1),
            graph_sizes=sizes,
            graph_rows=tuple(get("kGraphRows", ())),
            padded=bool(get("kPaddedDispatch", 0)) and bool(sizes),
            varlen=bool(get("kVarlen", 0)),
            prior=get("kPriorSurvival", 0),
            min_gain=numerator / denominator,
            places=get("kPlaces", 2 * values["kMaxNumSeqs"]),
        )
