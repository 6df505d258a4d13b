"""Engram: n-gram hashes of the recent ids read rows of a large table, gated into the residual streams."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import inverse_rms
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import EngramPlan
from deepinfer_gen.runtime.weights import TensorSource

# Floor of |dot| under the square root of the gate; part of the formula.
_GATE_FLOOR = 1e-6


def ngram_classes(batch: ForwardBatch, token_map: Tensor, pad_class: Tensor) -> Tensor:
    """Classes of each token and of the ids before it, int64 [T, n]: column s is s tokens back.

    Ids before this step's rows come from the batch's history. From the first place before the sequence start on, the
    pad token's class stands instead; nothing inside a sequence, an end token least of all, ends the look-back.
    """
    count, depth = batch.input_ids.shape[0], batch.history.shape[1]
    device = batch.input_ids.device
    ids = torch.cat([batch.history.reshape(-1), batch.input_ids])
    shift = torch.arange(depth + 1, device=device)
    start = batch.q_start.index_select(0, batch.row_of_token).unsqueeze(1)
    place = torch.arange(count, device=device).unsqueeze(1) - start - shift
    in_history = batch.row_of_token.unsqueeze(1) * depth + depth + place
    in_step = batch.history.numel() + start + place
    past = ids[torch.where(place < 0, in_history, in_step)]
    # A valid history has -1 before the start alone, so these places are the last of their rows.
    return torch.where(past < 0, pad_class, token_map[past.clamp(min=0)])


def table_rows(classes: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Hash n-grams into a layer's table: int64 [T, orders * heads] rows, the order outermost.

    ``classes`` int64 [T, n] and ``multipliers`` [n] by look-back; ``primes`` and ``offsets`` [n - 1, heads]. Products
    are exact: classes stay below the vocabulary that the multipliers are bounded by, so that they end below 2^63. What
    is beyond wraps, and a remainder has its prime's sign, so any classes give rows inside the table.
    """
    products = classes * multipliers
    rolling = products[:, 0]
    hashes = []
    for order in range(1, products.shape[1]):
        rolling = rolling ^ products[:, order]
        hashes.append(rolling)
    return (torch.stack(hashes, 1).unsqueeze(2) % primes + offsets).flatten(1)


class Engram(nn.Module):
    """The Engram of one layer; its table stays as stored and its rows are decoded as they are read."""

    table: Tensor
    table_scale: Tensor
    q_weight: Tensor
    k_weight: Tensor
    multipliers: Tensor
    primes: Tensor
    offsets: Tensor

    def __init__(
        self, source: TensorSource, prefix: str, plan: EngramPlan, constants: Constants, operators: Operators
    ) -> None:
        super().__init__()
        self.operators, self.constants = operators, constants
        self.register_buffer("table", source.stored(f"{prefix}.embed.weight"))
        self.register_buffer("table_scale", source.stored(f"{prefix}.embed.scale"))
        self.wkv = Matrix(source, f"{prefix}.wkv")
        self.register_buffer("q_weight", source.stored(f"{prefix}.q_weight"))
        self.register_buffer("k_weight", source.stored(f"{prefix}.k_weight"))
        orders = constants.engram_max_ngram_size - 1
        self.register_buffer("multipliers", torch.tensor(plan.multipliers, dtype=torch.int64))
        self.register_buffer("primes", torch.tensor(plan.primes, dtype=torch.int64).view(orders, -1))
        self.register_buffer("offsets", torch.tensor(plan.offsets, dtype=torch.int64).view(orders, -1))

    def rows(self, ngrams: Tensor) -> Tensor:
        """Table rows int64 [T, orders * heads] of the classes int64 [T, n] that ``ngram_classes`` gives."""
        return table_rows(ngrams, self.multipliers, self.primes, self.offsets)

    def forward(self, x: Tensor, ngrams: Tensor) -> Tensor:
        """Streams [T, n, d] plus the gated table value of each token's n-grams; the gate is float32."""
        c = self.constants
        gathered = self.operators.engram_gather(self.table, self.table_scale, self.rows(ngrams))
        pair = self.operators.linear(gathered, self.wkv).view(-1, c.hc_mult + 1, c.hidden_size)
        keys, value = pair[:, : c.hc_mult].to(torch.float32), pair[:, c.hc_mult :].to(torch.float32)
        wide = x.to(torch.float32)
        norms = inverse_rms(wide, c.rms_norm_eps).mul_(inverse_rms(keys, c.rms_norm_eps))
        weight = self.q_weight.to(torch.float32) * self.k_weight.to(torch.float32)
        dot = torch.linalg.vecdot(wide * weight, keys).unsqueeze(2).mul_(norms).mul_(c.hidden_size**-0.5)
        gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=_GATE_FLOOR).sqrt())
        return torch.addcmul(wide, gate, value).to(x.dtype)
