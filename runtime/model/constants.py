"""The model's constants with their types: the released names, read once from the generated plan."""

from __future__ import annotations

from dataclasses import dataclass, fields

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.plan_types import ModelPlan


@dataclass(frozen=True, slots=True)
class Constants:
    """``ModelPlan.constants``, typed. Names and meaning are those of the released configuration."""

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    rms_norm_eps: float
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    swiglu_limit: float
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    weight_tile_rows: int
    weight_tile_columns: int
    expert_dtype: str
    max_positions: int
    n_mtp_layers_in_checkpoint: int
    dspark_n_routed_experts: int
    dspark_markov_rank: int
    dspark_num_target_layers: int

    @classmethod
    def of(cls, plan: ModelPlan) -> Constants:
        """Read and type-check all constants; ``InputError`` names the first that is missing or of another type."""
        casts = {"int": int, "float": float, "str": str}
        values: dict[str, int | float | str] = {}
        for field in fields(cls):
            value = plan.constants.get(field.name)
            kind = str(field.type)
            accepted = (int, float) if kind == "float" else casts[kind]
            if not isinstance(value, accepted):
                found = "absent" if value is None else repr(value)
                raise InputError(
                    Diagnostic(
                        "DI343",
                        f"constant '{field.name}' must be of type {kind} and is {found}",
                        file="model_plan.py",
                        help="generate the engine again with this version",
                    )
                )
            values[field.name] = casts[kind](value)
        return cls(**values)  # type: ignore[arg-type]
