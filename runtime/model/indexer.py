"""The indexer of an index source: it scores compressed entries and chooses those that attention reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kv_cache import RegionRows
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.rope import rotate_tail
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import LayerPlan
from deepinfer_gen.runtime.weights import TensorSource


class IndexKeys(nn.Module):
    """Index keys of a KV source: a projection of the compressor's plain latent, taken before rotation."""

    norm: Tensor

    def __init__(self, source: TensorSource, layer: LayerPlan, constants: Constants, operators: Operators) -> None:
        super().__init__()
        prefix = f"{layer.prefix}.attn.indexer"
        self.operators, self.layer, self.eps = operators, layer, constants.rms_norm_eps
        self.wk = Matrix(source, f"{prefix}.wk")
        self.register_buffer("norm", source.stored(f"{prefix}.k_norm.weight"))

    def forward(self, latent: Tensor, keys: RegionRows, step: StepContext) -> None:
        """Store the keys of the entries [C, head_dim] that this step completes."""
        index = step.entries(keys, self.layer.ratio)
        rotation = step.rotary[self.layer.rope].index_select(0, index.positions)
        key = rotate_tail(rms_norm(self.operators.linear(latent, self.wk), self.norm, self.eps), rotation)
        self.operators.kv_scatter(keys, index.block, index.row, keys.codec.encode(key))
        step.counts.write("index", self.layer.index, key.shape[0])


class Indexer(nn.Module):
    """Scores with the keys of the layer's own KV source; a candidate source also publishes blocks to stay inside."""

    def __init__(self, source: TensorSource, layer: LayerPlan, constants: Constants, operators: Operators) -> None:
        super().__init__()
        prefix = f"{layer.prefix}.attn.indexer"
        self.operators, self.layer, self.constants = operators, layer, constants
        self.wq_b = Matrix(source, f"{prefix}.wq_b")
        self.weights_proj = Matrix(source, f"{prefix}.weights_proj")

    def forward(self, u: Tensor, qr: Tensor, keys: RegionRows, step: StepContext) -> Tensor:
        """u [T, d] and the query latent qr [T, q_lora_rank] to chosen entries [T, S], ascending, -1 padded."""
        c = self.constants
        q = self.operators.linear(qr, self.wq_b).view(-1, c.index_n_heads, c.index_head_dim)
        index = step.entries(keys, self.layer.ratio)
        # Queries are scored as keys are stored: both pass through the record format.
        q = keys.codec.decode(keys.codec.encode(rotate_tail(q, step.rotation(self.layer.rope))))
        # Both factors of the scores' scale ride on the head weights.
        scale = c.index_head_dim**-0.5 * c.index_n_heads**-0.5
        scores = self.operators.index_scores(
            q,
            self.operators.linear(u, self.weights_proj).mul_(scale),
            keys,
            step.block_tables,
            index.visible,
            width=index.width,
        )
        if self.layer.candidate_role == "source":
            step.candidates = candidate_mask(
                scores, index.visible, blocks=c.candidate_topk_blocks, block_size=c.candidate_block_size
            )
        elif self.layer.candidate_role == "consumer":
            if step.candidates is None:
                raise ValueError(f"layer {self.layer.index} selects inside candidates that no layer has published")
            scores = scores.masked_fill(~step.candidates, -torch.inf)
        return best_entries(scores, c.index_topk)


def best_entries(scores: Tensor, count: int) -> Tensor:
    """The ``count`` best finite scores of each row [T, J], ascending by entry, -1 padded; ties keep the older entry."""
    width = scores.shape[1]
    values, order = torch.sort(scores, dim=1, descending=True, stable=True)
    best = order[:, :count].masked_fill(values[:, :count] == -torch.inf, width)
    best = torch.sort(best, dim=1).values
    return best.masked_fill_(best == width, -1)


def candidate_mask(scores: Tensor, visible: Tensor, *, blocks: int, block_size: int) -> Tensor:
    """Entries inside the ``blocks`` best blocks of each row, bool [T, J]; a block scores as its best entry.

    The block of the newest visible entry is always kept; a query that sees nothing keeps no block.
    """
    width = scores.shape[1]
    pad = -width % block_size
    padded = torch.nn.functional.pad(scores, (0, pad), value=-torch.inf)
    grouped = padded.view(scores.shape[0], padded.shape[1] // block_size, block_size).amax(2)
    number = torch.arange(grouped.shape[1], device=scores.device)
    # At visible 0 the floor division gives -1, which is no block's number.
    newest = number == ((visible - 1) // block_size).unsqueeze(1)
    grouped = grouped.masked_fill_(newest, torch.inf)
    values, order = torch.sort(grouped, dim=1, descending=True, stable=True)
    kept = torch.zeros_like(newest).scatter_(1, order[:, :blocks], values[:, :blocks] > -torch.inf)
    return kept.repeat_interleave(block_size, 1)[:, :width]
