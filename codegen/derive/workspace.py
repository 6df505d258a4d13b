"""Device memory for the values of one step: activations, index scores, logits and decoded operands."""

from __future__ import annotations

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.specs.resolved import Resolved

_C = "model.config"
_ACTIVATION = "numerics.activation_bytes"
_TOKEN = "memory.workspace_token"


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``memory.workspace_*``, ``memory.{index_scores,logits,decoded_operands}_bytes``."""
    b.formula(
        "memory.workspace_tokens",
        "max(max_num_batched_tokens, max_total_q)",
        unit="tokens",
        why="the largest step, prefill or decode",
        max_num_batched_tokens="limits.max_num_batched_tokens",
        max_total_q="graphs.max_total_q",
    )
    _per_token(b)
    _index_scores(b)
    _logits(b)
    _decoded_operands(b)
    b.formula(
        "memory.workspace_bytes",
        "tokens * token_bytes + index_scores + logits + decoded",
        unit="B",
        why="buffers that live for one step, and on the CPU the decoded weights",
        tokens="memory.workspace_tokens",
        token_bytes="memory.workspace_token_bytes",
        index_scores="memory.index_scores_bytes",
        logits="memory.logits_bytes",
        decoded="memory.decoded_operands_bytes",
    )


def _per_token(b: PlanBuilder) -> None:
    b.formula(
        f"{_TOKEN}.streams_bytes",
        "2 * hc_mult * hidden * activation",
        unit="B",
        why="the residual streams before and after a sublayer",
        hc_mult=f"{_C}.hc_mult",
        hidden=f"{_C}.hidden_size",
        activation=_ACTIVATION,
    )
    b.formula(
        f"{_TOKEN}.attention_bytes",
        "(q_rank + 2 * heads * head_dim + groups * o_rank + hidden) * activation"
        " + index_heads * index_dim * activation + 4 * (topk + candidates)",
        unit="B",
        why="latent, queries and their outputs, index queries, and the selected rows as 32-bit indices",
        q_rank=f"{_C}.q_lora_rank",
        heads=f"{_C}.num_attention_heads",
        head_dim=f"{_C}.head_dim",
        groups=f"{_C}.o_groups",
        o_rank=f"{_C}.o_lora_rank",
        hidden=f"{_C}.hidden_size",
        activation=_ACTIVATION,
        index_heads=f"{_C}.index_n_heads",
        index_dim=f"{_C}.index_head_dim",
        topk=f"{_C}.index_topk",
        candidates=f"{_C}.candidate_topk_blocks",
    )
    b.formula(
        f"{_TOKEN}.moe_bytes",
        "topk * (2 * inner + hidden) * activation + 4 * hidden + (2 * topk * hidden * activation if ep > 1 else 0)",
        unit="B",
        why="gate, up and output rows of the chosen experts, the float32 sum, and rows sent and received",
        topk=f"{_C}.num_experts_per_tok",
        inner=f"{_C}.moe_intermediate_size",
        hidden=f"{_C}.hidden_size",
        activation=_ACTIVATION,
        ep="parallel.ep",
    )
    b.formula(
        f"{_TOKEN}.engram_bytes",
        "(tables * head_dim + (hc_mult + 1) * hidden) * activation if count(layers) > 0 else 0",
        unit="B",
        why="gathered table rows, their keys and their value",
        tables="engram.tables_per_layer",
        head_dim=f"{_C}.engram_head_dim",
        hc_mult=f"{_C}.hc_mult",
        hidden=f"{_C}.hidden_size",
        activation=_ACTIVATION,
        layers=f"{_C}.engram_layer_ids",
    )
    b.formula(
        "memory.workspace_token_bytes",
        "streams + max(attention, moe, engram)",
        unit="B",
        why="the streams live through a layer; its sublayers reuse one buffer",
        streams=f"{_TOKEN}.streams_bytes",
        attention=f"{_TOKEN}.attention_bytes",
        moe=f"{_TOKEN}.moe_bytes",
        engram=f"{_TOKEN}.engram_bytes",
    )


def _index_scores(b: PlanBuilder) -> None:
    b.formula(
        "memory.index_scores_bytes",
        "4 * queries * (1 if backend == 'cpu' else units) * length",
        unit="B",
        why="float32 scores of the queries in flight against every row of a longest sequence",
        queries="kernels.index_scores.tile.queries",
        backend="hardware.backend",
        units="hardware.compute_units",
        length="model.runtime_max_model_len",
    )


def _logits(b: PlanBuilder) -> None:
    b.formula(
        "memory.logits_rows",
        "max(max_num_prompts, max_total_q)",
        unit="rows",
        why="prefill samples one row a prompt, decode verifies every row",
        max_num_prompts="limits.max_num_prompts",
        max_total_q="graphs.max_total_q",
    )
    b.formula(
        "memory.logits_bytes",
        "rows * vocab * 4 * 2",
        unit="B",
        why="float32 logits and probabilities",
        rows="memory.logits_rows",
        vocab=f"{_C}.vocab_size",
    )


def _decoded_operands(b: PlanBuilder) -> None:
    experts = "layers * local_experts * expert"
    operands = {
        "layers": f"{_C}.num_hidden_layers",
        "local_experts": "parallel.local_experts",
        "expert": "weights.expert.parameters",
        "dense": "weights.dense_parameters",
        "backend": "hardware.backend",
    }
    draft = ""
    if b.integer("speculative.draft_layers"):
        draft = " + draft_dense + draft_layers * draft_experts * expert"
        operands |= {
            "draft_dense": "weights.draft_dense_parameters",
            "draft_layers": "speculative.draft_layers",
            "draft_experts": "eplb.draft.local_experts",
        }
    b.formula(
        "memory.decoded_operands_bytes",
        f"4 * (dense + {experts}{draft}) if backend == 'cpu' else 0",
        unit="B",
        why="reference operators keep float32 copies beside the stored weights; Engram rows are decoded when gathered",
        **operands,
    )
