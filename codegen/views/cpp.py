"""The tables of the generated C++: constants, invariants and the composition of policies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from deepinfer_gen.codegen.derive.kv import BLOCK_ALIGNMENT
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.policies import select
from deepinfer_gen.codegen.views.layout import state_regions
from deepinfer_gen.formula import Value

_COLUMNS = 110
_NAME = re.compile(r"\bk[A-Z]\w*")
_ENGINE_TYPES = {"NORMAL": "EngineType::Normal", "PROMPT": "EngineType::Prompt", "COMPLETION": "EngineType::Completion"}


@dataclass(frozen=True, slots=True)
class Constant:
    """One ``static constexpr`` member; ``comment`` is its formula."""

    name: str
    type: str
    value: str
    comment: str


@dataclass(frozen=True, slots=True)
class Invariant:
    """One ``static_assert``; ``graphs`` marks those about decode graphs, which a PROMPT engine has none of."""

    condition: str
    sentence: str
    graphs: bool = False


@dataclass(frozen=True, slots=True)
class _Member:
    """Where a member of EngineConfig comes from; ``type`` is a C++ type of the Plan value under ``key``."""

    name: str
    type: str
    key: str


_CONFIDENCE = "std::uint16_t"
_COUNT = "std::int32_t"
_BYTES = "std::int64_t"
_MEMBERS = (
    _Member("kMaxNumSeqs", _COUNT, "limits.max_num_seqs"),
    _Member("kMaxModelLen", _COUNT, "limits.max_model_len"),
    _Member("kRuntimeMaxModelLen", _COUNT, "model.runtime_max_model_len"),
    _Member("kMaxNumBatchedTokens", _COUNT, "limits.max_num_batched_tokens"),
    _Member("kMaxNumPrompts", _COUNT, "limits.max_num_prompts"),
    _Member("kPrefillMaxSumSeqlenK", _COUNT, "limits.prefill_max_sum_seqlen_k"),
    _Member("kBlockSize", _COUNT, "kv.block_size"),
    _Member("kNumBlocks", _COUNT, "kv.num_blocks"),
    _Member("kBlocksPerSeq", _COUNT, "kv.blocks_per_seq"),
    _Member("kNumSlots", _COUNT, "state.num_slots"),
    _Member("kSlidingWindow", _COUNT, "model.config.sliding_window"),
    _Member("kSwaRingTokens", _COUNT, "state.swa_ring_tokens"),
    _Member("kHistory", _COUNT, "engram.history_tokens"),
    _Member("kNextn", _COUNT, "speculative.nextn"),
    _Member("kMaxQ", _COUNT, "speculative.max_q"),
    _Member("kPriorSurvival", _CONFIDENCE, "speculative.prior_confidence"),
    _Member("kPrefillAttemptInterval", _COUNT, "schedule.prefill_attempt_interval"),
    _Member("kPrefillAnyAttemptInterval", _COUNT, "schedule.prefill_any_attempt_interval"),
    _Member("kPrefillBurst", _COUNT, "schedule.prefill_burst"),
    _Member("kStopPreemptedRequest", "bool", "schedule.stop_preempted_request"),
    _Member("kCpSize", _COUNT, "parallel.cp"),
    _Member("kPaddedDispatch", "bool", "parallel.padded_dispatch"),
    _Member("kMaxTotalQ", _COUNT, "graphs.max_total_q"),
    _Member("kMaxGraphRows", _COUNT, "graphs.max_rows"),
    _Member("kBlockBytes", _BYTES, "kv.block_bytes"),
    _Member("kSlotBytes", _BYTES, "state.slot_bytes"),
    _Member("kStoredBytes", _BYTES, "state.stored_bytes"),
    _Member("kDroppedBytes", _BYTES, "state.dropped_bytes"),
)
_RATIOS = (
    ("kPrefillCacheUsageLimit", _COUNT, "schedule.prefill_cache_usage_limit"),
    ("kMinGain", _BYTES, "speculative.min_gain"),
)
"""Exact fractions: each becomes two constants of the type, numerator and denominator."""
_RANGE = {_CONFIDENCE: 2**16, _COUNT: 2**31, _BYTES: 2**63}

_INVARIANTS = (
    Invariant("kNumSlots >= kMaxNumSeqs + 2", "every sequence has a slot, besides slot 0 and one for copies"),
    Invariant("kNumBlocks > kBlocksPerSeq", "one longest sequence fits beside block 0"),
    Invariant("kBlocksPerSeq * kBlockSize >= kRuntimeMaxModelLen", "a block table covers the longest sequence"),
    Invariant("kRuntimeMaxModelLen >= kMaxModelLen", "drafts and scheduling slack only lengthen a sequence"),
    Invariant("kPrefillMaxSumSeqlenK >= kMaxModelLen", "one longest prompt fits a prefill step"),
    Invariant("kPrefillAnyAttemptInterval > kPrefillAttemptInterval", "ANY points come after ALL points"),
    Invariant("kMaxQ == kNextn + 1", "a row verifies its drafts and one token more"),
    Invariant("kSwaRingTokens >= kSlidingWindow + kNextn + 1", "drafts never overwrite a token of the live window"),
    Invariant("kMaxTotalQ == kMaxNumSeqs * kMaxQ", "the largest step holds every sequence with all drafts", True),
    Invariant("kGraphSizes.back() == kMaxTotalQ", "the graph sizes close at the largest step", True),
    Invariant("kGraphSizes.size() == kGraphRows.size()", "every graph has a row capacity"),
    Invariant("strictly_ascending(kGraphSizes)", "graph sizes are strictly ascending"),
    Invariant("kSlotBytes == kStoredBytes + kDroppedBytes", "a slot is its stored and its dropped region"),
    Invariant("disjoint_within(kStateRegions, kSlotBytes)", "state regions are in order, apart, and inside the slot"),
    Invariant(f"kBlockBytes % {BLOCK_ALIGNMENT} == 0", f"a block is a multiple of {BLOCK_ALIGNMENT} bytes"),
)


def config_view(plan: Plan) -> dict[str, object]:
    """Tables of ``engine_config.hpp``; a member whose Plan key the engine type lacks is left out."""
    constants = tuple(_constants(plan))
    names = {constant.name for constant in constants}
    graphs = bool(plan.integers("graphs.sizes"))
    invariants = [i for i in _INVARIANTS if names.issuperset(_NAME.findall(i.condition)) and (graphs or not i.graphs)]
    return {"members": _aligned(constants), "invariants": [_static_assert(i) for i in invariants]}


def engine_view(plan: Plan) -> dict[str, object]:
    """Table of ``engine.cpp``: the constants that the built extension reports."""
    return {"names": [constant.name for constant in _constants(plan)]}


def scheduler_view(plan: Plan) -> dict[str, object]:
    """Tables of ``scheduler.hpp``: the headers of the composition and its template arguments.

    An engine that only prefills has no verification and no decode order to choose.
    """
    chosen = [select(key, plan[key]) for key in ("engine.type", "speculative.verify") if key in plan]
    headers, policies = [policy.header for policy in chosen], [policy.name for policy in chosen]
    if plan.integers("graphs.sizes"):
        headers.append("engine/order_output_length.hpp")
        policies.append("OutputLengthOrder")
    return {"headers": sorted(["engine/core.hpp", *headers]), "policies": policies}


def digits(value: int) -> str:
    """A C++ integer, in groups of three from 10,000 on."""
    return f"{value:,}".replace(",", "'") if abs(value) >= 10_000 else str(value)


def _constants(plan: Plan) -> Iterator[Constant]:
    yield Constant("kEngineType", "EngineType", _ENGINE_TYPES[str(plan["engine.type"])], "engine.type")
    for member in _MEMBERS:
        if member.key in plan:
            yield Constant(member.name, member.type, _scalar(plan[member.key], member), _formula(plan, member.key))
    for name, type_, key in _RATIOS:
        if key in plan:
            ratio = Fraction(plan[key])  # type: ignore[arg-type]
            for part, value in (("Numerator", ratio.numerator), ("Denominator", ratio.denominator)):
                yield Constant(name + part, type_, _scalar(value, _Member(name, type_, key)), _formula(plan, key))
    for name, key in (("kGraphSizes", "graphs.sizes"), ("kGraphRows", "graphs.rows")):
        values = [digits(v) for v in plan.integers(key)]
        yield Constant(name, f"std::array<{_COUNT}, {len(values)}>", _array(values), _formula(plan, key))
    regions = [f"StateRegion{{{digits(r.offset)}, {digits(r.bytes)}}}" for r in state_regions(plan)]
    note = "layout.json: offset and bytes of each region"
    yield Constant("kStateRegions", f"std::array<StateRegion, {len(regions)}>", _array(regions), note)
    yield Constant("kPlanDigest", "std::string_view", f'"{plan.plan_digest}"', "sha256 of every value of the Plan")


def _scalar(value: Value, member: _Member) -> str:
    """The literal of one value, which must fit its C++ type."""
    if member.type == "bool":
        return "true" if value is True else "false"
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _RANGE[member.type]:
        raise TypeError(f"{member.key} is {value!r}, which is no {member.type}")
    return digits(value)


def _formula(plan: Plan, key: str) -> str:
    """The trailing comment: the Plan key, and its formula if it has one."""
    formula = plan.values[key].formula
    return f"{key} = {formula}" if formula else key


def _array(items: Sequence[str]) -> str:
    """A braced list: on one line if it is short, else filled lines inside the struct."""
    flat = "{" + ", ".join(items) + "}"
    if len(flat) <= _COLUMNS // 2:
        return flat
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 7 > _COLUMNS:
            lines.append(line.rstrip())
            line = ""
        line += f"{item}, "
    return "{\n" + "".join(f"      {text}\n" for text in [*lines, line.rstrip(", ")]) + "  }"


def _aligned(constants: Sequence[Constant]) -> list[str]:
    """The member declarations, names and trailing comments in columns; a long list stands below its comment."""
    members = []
    short = [c for c in constants if "\n" not in c.value]
    heads = {c.name: f"static constexpr {c.type} {c.name} = {c.value};" for c in short}
    width = max(len(head) for name, head in heads.items() if name != "kPlanDigest")
    for c in constants:
        if c.name in heads:
            members.append(f"{heads[c.name]:<{width}}  // {c.comment}")
        else:
            members.append(f"// {c.comment}\n  static constexpr {c.type} {c.name} = {c.value};")
    return members


def _static_assert(invariant: Invariant) -> str:
    """The assertion as clang-format lays it out: on one line, or broken after the condition."""
    condition = _NAME.sub(r"EngineConfig::\g<0>", invariant.condition)
    flat = f'static_assert({condition}, "{invariant.sentence}");'
    if len(flat) <= _COLUMNS:
        return flat
    body = f'    {condition}, "{invariant.sentence}"'
    if len(body) > _COLUMNS:
        body = f'    {condition},\n    "{invariant.sentence}"'
    return f"static_assert(\n{body}\n);"
