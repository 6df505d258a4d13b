"""What one EP rank demands of a checkpoint: the tensors it loads, leaves to other ranks, or only checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from deepinfer_gen.checkpoint_table import DemandedTensor, LayerParts, TensorSpec, unroll
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import ExpertStarts, ModelPlan

# Tensors of the vision tower, not built: skipped and counted.
SKIPPED_PREFIXES = ("vision.", "aligner.", "image_")


@dataclass(frozen=True, slots=True)
class Demand:
    """All tensors of the text model by name, in three parts.

    ``held`` are loaded by this rank, ``elsewhere`` are routed experts of other ranks, ``checked`` are the draft layers
    of an engine that does not draft. A checkpoint must hold all three.
    """

    held: Mapping[str, TensorSpec]
    elsewhere: Mapping[str, TensorSpec]
    checked: Mapping[str, TensorSpec]

    @property
    def all(self) -> dict[str, TensorSpec]:
        """Every tensor that the checkpoint must hold."""
        return {**self.held, **self.elsewhere, **self.checked}


def demand(plan: ModelPlan, constants: Constants, ep_rank: int = 0, ep_size: int = 1) -> Demand:
    """The tensors of rank ``ep_rank`` in a group of ``ep_size``; ``InputError`` (DI400) for a group of another size."""
    own = {
        "experts": own_experts(plan, constants, ep_rank, ep_size),
        "draft_experts": own_experts(plan, constants, ep_rank, ep_size, draft=True),
    }
    held: dict[str, TensorSpec] = {}
    elsewhere: dict[str, TensorSpec] = {}
    checked: dict[str, TensorSpec] = {}
    for tensor in _tensors(plan, constants):
        if tensor.group.startswith("draft_") and plan.draft is None:
            checked[tensor.name] = tensor.spec
        elif tensor.expert is not None and tensor.expert not in own[tensor.group]:
            elsewhere[tensor.name] = tensor.spec
        else:
            held[tensor.name] = tensor.spec
    return Demand(held, elsewhere, checked)


def own_experts(
    plan: ModelPlan, constants: Constants, ep_rank: int = 0, ep_size: int = 1, *, draft: bool = False
) -> range:
    """The routed experts of a backbone or draft layer that rank ``ep_rank`` reads, as the plan divides them."""
    starts = plan.expert_starts or ExpertStarts((0, constants.n_routed_experts), (0, constants.dspark_n_routed_experts))
    ranks = len(starts.backbone) - 1
    if ep_size != ranks or not 0 <= ep_rank < ep_size:
        message = f"the engine divides its experts among {ranks} ranks, and this is rank {ep_rank} of {ep_size}"
        remedy = f"start {ranks} ranks a group, or compile an engine with parallel.ep: {ep_size}"
        raise InputError(Diagnostic("DI400", message, file="model_plan.py", help=remedy))
    chosen = starts.draft if draft else starts.backbone
    return range(chosen[ep_rank], chosen[ep_rank + 1]) if chosen else range(0)


def _tensors(plan: ModelPlan, constants: Constants) -> Iterable[DemandedTensor]:
    """Every tensor of backbone and draft layers, used or not, in the released order."""
    parts = [
        LayerParts(
            kv_source=layer.is_kv_source,
            gated=layer.ca_state is not None,
            index_source=layer.is_index_source,
            engram_rows=layer.engram.rows if layer.engram else 0,
        )
        for layer in plan.layers
    ]
    operands = {
        **asdict(constants),
        "tile_rows": constants.weight_tile_rows,
        "tile_columns": constants.weight_tile_columns,
        "target_layers": constants.dspark_num_target_layers,
    }
    return unroll(parts, constants.n_mtp_layers_in_checkpoint, operands)
