"""``model_plan.py`` and ``kernels.py``: what the runtime reads of the model, unrolled layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.views.layout import StateRegion, kv_rows, layer_indices, state_regions
from deepinfer_gen.codegen.views.python_text import expression
from deepinfer_gen.formula import Value
from deepinfer_gen.runtime.plan_types import (
    DraftPlan,
    EngramPlan,
    ExpertStarts,
    KernelConfig,
    LayerPlan,
    ModelPlan,
    Region,
    RopePlan,
    YocoPlan,
)

_CONFIG_NAMES = (
    "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank",
    "o_groups", "rms_norm_eps", "moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "routed_scaling_factor", "swiglu_limit", "sliding_window", "index_n_heads", "index_head_dim", "index_topk",
    "candidate_topk_blocks", "candidate_block_size", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "engram_max_ngram_size",
    "engram_n_heads", "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size", "bos_token_id",
    "eos_token_id", "pad_token_id", "dspark_n_routed_experts", "dspark_markov_rank",
)  # fmt: skip
_OTHER_NAMES = {
    "weight_tile_rows": "weights.tile_rows",
    "weight_tile_columns": "weights.tile_columns",
    "expert_dtype": "model.config.expert_dtype",
    "max_positions": "model.runtime_max_model_len",
    "n_mtp_layers_in_checkpoint": "model.config.num_nextn_predict_layers",
    "dspark_num_target_layers": "weights.target_layers",
}
_ROPE_TABLES = ("base", "compressed")


def model_plan(plan: Plan) -> ModelPlan:
    """The value of ``MODEL``."""
    names = {**{name: f"model.config.{name}" for name in _CONFIG_NAMES}, **_OTHER_NAMES}
    regions = {region.name: region for region in state_regions(plan)}
    backbone = plan.integer("model.config.num_hidden_layers")
    return ModelPlan(
        preset=str(plan["model.preset"]),
        policy=str(plan["numerics.policy"]),
        constants={name: _constant(plan[key]) for name, key in names.items()},
        rope={table: _rope(plan, table) for table in _ROPE_TABLES},
        yoco=_yoco(plan),
        layers=tuple(_layer(plan, layer, regions) for layer in range(backbone)),
        draft=_draft(plan, regions, backbone),
        expert_starts=_expert_starts(plan),
        batch_invariant=plan["determinism.batch_invariant"] is True,
    )


def model_view(plan: Plan) -> dict[str, object]:
    """Text of ``model_plan.py`` after its imports."""
    prefix = "MODEL: ModelPlan = "
    return {"prefix": prefix, "model": expression(model_plan(plan), len(prefix))}


def kernels(plan: Plan) -> dict[str, KernelConfig]:
    """The value of ``KERNELS``, by kernel name."""
    names = plan["kernels.names"]
    assert isinstance(names, tuple)
    keys = [key for key in plan if key.startswith("kernels.")]
    return {str(name): _kernel(plan, keys, str(name)) for name in names}


def kernels_view(plan: Plan) -> dict[str, object]:
    """Text of ``kernels.py`` after its imports."""
    prefix = "KERNELS: dict[str, KernelConfig] = "
    return {"prefix": prefix, "kernels": expression(kernels(plan), len(prefix))}


def kernels_content(plan: Plan) -> dict[str, Any]:
    """``kernels.json`` without schema and stamp."""
    table = {name: asdict(kernel) for name, kernel in kernels(plan).items()}
    return {"kernels": {name: {k: v for k, v in row.items() if k != "name"} for name, row in table.items()}}


def _constant(value: Value) -> int | float | str:
    """Exact fractions of the config are floats in the model."""
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, (int, str)):
        return value
    raise TypeError(f"{value!r} is no model constant")


def _rope(plan: Plan, table: str) -> RopePlan:
    return RopePlan(*(plan.integer(f"rope.{table}.{name}") for name in ("theta", "factor", "low", "high")))


def _yoco(plan: Plan) -> YocoPlan | None:
    """None when truncation is off, and for an engine that never prefills."""
    if "yoco.mode" not in plan or plan["yoco.mode"] == "off":
        return None
    return YocoPlan(
        mode=str(plan["yoco.mode"]),
        first_consumer_layer=plan.integer("yoco.first_consumer_layer"),
        keep_tokens=plan.integer("yoco.keep_tokens"),
    )


def _draft(plan: Plan, regions: dict[str, StateRegion], backbone: int) -> DraftPlan | None:
    if plan["speculative.nextn"] == 0:
        return None
    return DraftPlan(
        nextn=plan.integer("speculative.nextn"),
        block_size=plan.integer("model.config.dspark_block_size"),
        noise_token_id=plan.integer("model.config.dspark_noise_token_id"),
        target_layers=plan.integers("model.config.dspark_target_layer_ids"),
        layers=tuple(_layer(plan, layer, regions) for layer in layer_indices(plan) if layer >= backbone),
    )


def _expert_starts(plan: Plan) -> ExpertStarts | None:
    """None with one rank a group."""
    if plan["parallel.ep"] == 1:
        return None
    key = "eplb.draft.expert_starts"
    return ExpertStarts(plan.integers("parallel.expert_starts"), plan.integers(key) if key in plan else ())


def _layer(plan: Plan, layer: int, regions: dict[str, StateRegion]) -> LayerPlan:
    prefix = f"layers.{layer}"
    source = _optional(plan, f"{prefix}.kv_source")
    accumulator = regions.get(f"ca_state.{layer}")
    return LayerPlan(
        index=layer,
        prefix=str(plan[f"{prefix}.tensors"]),
        ratio=plan.integer(f"{prefix}.ratio"),
        experts=plan.integer(f"{prefix}.experts"),
        experts_per_token=plan.integer(f"{prefix}.experts_per_token"),
        rope=str(plan[f"{prefix}.rope"]),
        kv_source=source,
        index_source=_optional(plan, f"{prefix}.index_source"),
        candidate_role=str(plan[f"{prefix}.candidate_role"]),
        engram=_engram(plan, layer) if plan[f"{prefix}.engram"] is True else None,
        stored=plan[f"{prefix}.stored"] is True,
        swa=_ring(regions[f"swa.{layer}"]),
        ca_state=_ring(accumulator) if accumulator else None,
        main=None if source is None else kv_rows(plan, source, "main"),
        index_keys=None if source is None else kv_rows(plan, source, "index"),
    )


def _optional(plan: Plan, key: str) -> int | None:
    return None if plan[key] is None else plan.integer(key)


def _engram(plan: Plan, layer: int) -> EngramPlan:
    tables = [plan.integers(f"engram.{layer}.{name}") for name in ("multipliers", "primes", "offsets")]
    return EngramPlan(plan.integer(f"engram.{layer}.rows"), *tables)


def _ring(region: StateRegion) -> Region:
    return Region(region.offset, region.rows, region.row_bytes, region.format, region.scales)


def _kernel(plan: Plan, keys: Sequence[str], name: str) -> KernelConfig:
    prefix = f"kernels.{name}"
    return KernelConfig(
        name=name,
        implementation=str(plan[f"{prefix}.implementation"]),
        static=_group(plan, keys, f"{prefix}.static."),
        tile=_group(plan, keys, f"{prefix}.tile."),
        threads=plan.integer(f"{prefix}.threads"),
        stages=plan.integer(f"{prefix}.stages"),
        shared_bytes=plan.integer(f"{prefix}.shared_bytes"),
        why=plan.values[f"{prefix}.implementation"].why,
    )


def _group(plan: Plan, keys: Sequence[str], start: str) -> dict[str, Any]:
    return {key.removeprefix(start): plan[key] for key in keys if key.startswith(start)}
