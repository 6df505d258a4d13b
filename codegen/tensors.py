"""The tensors that a checkpoint must hold for a model config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepinfer_gen.checkpoint_table import DemandedTensor, LayerParts, unroll
from deepinfer_gen.specs.model_keys import KEYS

if TYPE_CHECKING:
    from deepinfer_gen.specs.model_config import ModelConfig


def demanded_tensors(model: ModelConfig) -> Iterator[DemandedTensor]:
    """Every tensor of the text model, draft layers included, vision left out, layer by layer."""
    rows, columns = model.weight_block_size
    operands = {
        **{name: model.value(name) for name in KEYS},
        "tile_rows": rows,
        "tile_columns": columns,
        "target_layers": len(model.dspark_target_layer_ids),
    }
    tables = dict(zip(model.engram_layer_ids, model.engram_num_embeddings, strict=True))
    parts = [
        LayerParts(
            kv_source=layer in model.kv_source_layer_ids,
            gated=layer in model.kv_source_layer_ids and model.compress_ratios[layer] > 1,
            index_source=layer in model.index_source_layer_ids,
            engram_rows=tables.get(layer, 0),
        )
        for layer in range(model.num_hidden_layers)
    ]
    return unroll(parts, model.num_nextn_predict_layers, operands)
