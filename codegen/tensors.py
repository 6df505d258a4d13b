"""The parameters that a model config demands of a checkpoint, and the tensors that store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_gen.checkpoint_table import DemandedParameter, DemandedTensor, LayerParts, unroll, unroll_parameters
from deepinfer_gen.specs.model_keys import KEYS

if TYPE_CHECKING:
    from deepinfer_gen.specs.model_config import ModelConfig


def demanded_tensors(model: ModelConfig) -> Iterator[DemandedTensor]:
    """Every tensor of the text model, draft layers included, vision left out, layer by layer."""
    return unroll(_parts(model), model.num_nextn_predict_layers, _operands(model))


def demanded_parameters(model: ModelConfig) -> Iterator[DemandedParameter]:
    """Every parameter of the text model in the order of its tensors."""
    return unroll_parameters(_parts(model), model.num_nextn_predict_layers, _operands(model))


def _operands(model: ModelConfig) -> Mapping[str, Any]:
    rows, columns = model.weight_block_size
    return {
        **{name: model.value(name) for name in KEYS},
        "tile_rows": rows,
        "tile_columns": columns,
        "target_layers": len(model.dspark_target_layer_ids),
    }


def _parts(model: ModelConfig) -> list[LayerParts]:
    tables = dict(zip(model.engram_layer_ids, model.engram_num_embeddings, strict=True))
    return [
        LayerParts(
            kv_source=layer in model.kv_source_layer_ids,
            gated=layer in model.kv_source_layer_ids and model.compress_ratios[layer] > 1,
            index_source=layer in model.index_source_layer_ids,
            engram_rows=tables.get(layer, 0),
        )
        for layer in range(model.num_hidden_layers)
    ]
