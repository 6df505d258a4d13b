"""Attention of a layer over whole sequences: a sliding window plus chosen entries of a shared compressed cache.

Windows are cut into chunks of the window's length, so that a query meets two chunks of keys; entries are dense with a
mask of the selection. Both meet in one softmax with the sink.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from fusion import fused
from sizes import Sizes, matrix
from straight_through import mxfp4, mxfp8, nvfp4
from streams import rms, rotate
from torch import Tensor, nn


@dataclass(slots=True)
class Shared:
    """What later layers read of earlier ones in one pass: by KV source its rotated entries [B, J, head_dim] and index
    keys [B, J, index_head_dim], by index source the selection bool [B, T, J]; of the candidate source the candidates.
    ``index_losses`` collects how far each indexer is from the attention it should predict.
    """

    entries: dict[int, Tensor]
    index_keys: dict[int, Tensor]
    selections: dict[int, Tensor]
    index_losses: list[Tensor]
    candidates: Tensor | None = None


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.weight)


class Projection(nn.Module):
    """A matrix that is stored unquantised."""

    def __init__(self, rows: int, columns: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = matrix(rows, columns, gain=gain)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def product_type(x: Tensor) -> torch.dtype:
    """What a product of ``x`` is computed in: on a GPU under autocast its type, else that of ``x``."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


class Compressor(nn.Module):
    """Tokens to entries, one per ``ratio`` tokens; pairs are pooled per channel by a learned gate."""

    def __init__(self, sizes: Sizes, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.wkv = Projection(sizes.head_dim, sizes.hidden_size)
        if ratio > 1:
            self.wgate = Projection(sizes.head_dim, sizes.hidden_size)
        self.norm = Norm(sizes.head_dim)

    def forward(self, u: Tensor) -> Tensor:
        """u [B, T, d] to latents [B, T / ratio, head_dim], before rotation."""
        rows = self.wkv(u)
        if self.ratio > 1:
            pairs = torch.unflatten(rows.float(), 1, (-1, self.ratio))
            weights = torch.unflatten(self.wgate(u).float(), 1, (-1, self.ratio)).softmax(2)
            rows = (weights * pairs).sum(2)
        latents: Tensor = self.norm(rows)
        return latents


class Indexer(nn.Module):
    """Scores entries; a KV source also makes the keys that it and later indexers score with."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.heads, self.width = sizes.index_n_heads, sizes.index_head_dim
        self.wq_b = matrix(self.heads * self.width, sizes.q_lora_rank)
        self.weights_proj = Projection(self.heads, sizes.hidden_size)
        if layer in sizes.kv_source_layer_ids:
            self.wk, self.k_norm = Projection(self.width, sizes.head_dim), Norm(self.width)

    def keys(self, latent: Tensor, turn: Tensor) -> Tensor:
        """Keys [B, J, width] of the latents; only the indexer learns from them."""
        return mxfp4(rotate(self.k_norm(self.wk(latent.detach())), turn))

    def forward(self, u: Tensor, qr: Tensor, wq_b: Tensor, keys: Tensor, turn: Tensor) -> Tensor:
        """Scores float32 [B, T, J] of all entries, visible or not."""
        q = torch.unflatten(F.linear(qr.detach(), wq_b), -1, (self.heads, self.width))
        q = mxfp4(rotate(q, turn.unsqueeze(1)))
        weights = self.weights_proj(u.detach()).float() * (self.width * self.heads) ** -0.5
        scores: Tensor = index_scores(q, weights, keys)
        return scores


@fused
def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Queries [B, T, h, D], weights of the heads [B, T, h] and keys [B, J, D]: scores float32 [B, T, J]."""
    products = torch.einsum("bthd,bjd->bthj", q, keys)
    return (products.float().relu() * weights.unsqueeze(-1)).sum(2)


def choose(scores: Tensor, count: int) -> Tensor:
    """The ``count`` best finite scores of each row, bool like ``scores`` [B, T, J]."""
    if scores.shape[-1] <= count:
        return scores > -torch.inf
    values, places = scores.topk(count, dim=-1)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, places, values > -torch.inf)


def candidate_mask(scores: Tensor, visible: Tensor, blocks: int, size: int) -> Tensor:
    """Entries inside the best blocks of each row, the block of the newest visible entry always among them."""
    grouped = torch.unflatten(scores, -1, (-1, size)).amax(-1)
    newest = torch.arange(grouped.shape[-1], device=scores.device) == ((visible - 1) // size)[:, None]
    kept = choose(grouped.masked_fill(newest, torch.inf), blocks)
    return kept.repeat_interleave(size, -1)


@fused
def window_attention(q: Tensor, k: Tensor, sink: Tensor, window: int) -> Tensor:
    """q [B, T, h, D] over the last ``window`` rows of k [B, T, D]: [B, T, h, D]."""
    scores, values = _window(q, k, window)
    padded = torch.cat([scores, _sinks(sink, scores)], -1).softmax(-1)[..., :-1]
    return _window_values(padded, values)


@fused
def sparse_attention(
    q: Tensor, k: Tensor, entries: Tensor, selected: Tensor, sink: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """The same with the ``selected`` [B, T, J] of ``entries`` [B, J, D] in the same softmax.

    Also the scores of all entries, float32 [B, h, T, J], from which an indexer learns.
    """
    near, values = _window(q, k, window)
    far = torch.einsum("bthd,bjd->bhtj", q, entries).float() * q.shape[-1] ** -0.5
    chosen = far.masked_fill(~selected.unsqueeze(1), -torch.inf)
    width = near.shape[-1]
    weights = torch.cat([near, chosen, _sinks(sink, near)], -1).softmax(-1).to(q.dtype)
    found = torch.einsum("bhtj,bjd->bthd", weights[..., width:-1], entries)
    return _window_values(weights[..., :width], values) + found, far


@fused
def index_loss(scores: Tensor, far: Tensor, visible: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the indexer's distribution from the attention's over all visible entries."""
    seen = torch.arange(scores.shape[-1], device=scores.device) < visible[:, None]
    target = far.masked_fill(~seen, -1e30).softmax(-1).mean(1)
    predicted = scores.masked_fill(~seen, -1e30).log_softmax(-1)
    rows = (target * ((target + 1e-9).log() - predicted)).sum(-1)
    return (rows * (visible > 0)).mean()


def _window(q: Tensor, k: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Scores float32 [B, h, T, 2 window] of each query with its chunk and the one before, and those rows."""
    chunks = torch.unflatten(k, 1, (-1, window))
    rows = torch.cat([F.pad(chunks, (0, 0, 0, 0, 1, 0))[:, :-1], chunks], 2)
    queries = torch.unflatten(q, 1, (-1, window))
    scores = torch.einsum("bcqhd,bckd->bhcqk", queries, rows).float() * q.shape[-1] ** -0.5
    place = torch.arange(window, device=q.device)
    distance = place[:, None] + window - torch.arange(2 * window, device=q.device)
    inside = (distance >= 0) & (distance < window)
    first = inside & (torch.arange(2 * window, device=q.device) >= window)
    allowed = torch.where(torch.arange(chunks.shape[1], device=q.device)[:, None, None] > 0, inside, first)
    return scores.masked_fill(~allowed, -torch.inf).flatten(2, 3), rows


def _window_values(weights: Tensor, rows: Tensor) -> Tensor:
    chunked = torch.unflatten(weights, 2, (rows.shape[1], -1)).to(rows.dtype)
    return torch.einsum("bhcqk,bckd->bcqhd", chunked, rows).flatten(1, 2)


def _sinks(sink: Tensor, scores: Tensor) -> Tensor:
    return sink.view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)


class Attention(nn.Module):
    """All roles of a layer follow from its number. Quantised weights come as their stored values, ``stored``."""

    def __init__(self, sizes: Sizes, layer: int) -> None:
        super().__init__()
        d, heads, width = sizes.hidden_size, sizes.num_attention_heads, sizes.head_dim
        self.sizes, self.layer, self.ratio = sizes, layer, sizes.compress_ratios[layer]
        self.wq_a, self.wq_b = matrix(sizes.q_lora_rank, d), matrix(heads * width, sizes.q_lora_rank)
        self.wkv = matrix(width, d)
        self.wo_a = matrix(sizes.o_groups * sizes.o_lora_rank, heads * width // sizes.o_groups)
        self.wo_b = matrix(d, sizes.o_groups * sizes.o_lora_rank, gain=0.1)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.q_norm, self.kv_norm = Norm(sizes.q_lora_rank), Norm(width)
        backbone = layer < sizes.num_hidden_layers
        self.is_kv_source = backbone and layer in sizes.kv_source_layer_ids
        self.is_index_source = backbone and layer in sizes.index_source_layer_ids
        if self.is_kv_source:
            self.compressor = Compressor(sizes, self.ratio)
        if self.is_index_source:
            self.indexer = Indexer(sizes, layer)

    def queries(self, u: Tensor, stored: dict[str, Tensor], turn: Tensor) -> tuple[Tensor, Tensor]:
        """The latent [..., q_lora_rank] and the rotated queries [..., heads, head_dim]; ``turn`` [..., rope / 2, 2]."""
        qr = self.q_norm(F.linear(u, stored["wq_a"]))
        heads = self.sizes.num_attention_heads, self.sizes.head_dim
        q = torch.unflatten(F.linear(qr, stored["wq_b"]), -1, heads)
        return qr, rotate(q, turn.unsqueeze(-3))

    def rows(self, u: Tensor, stored: dict[str, Tensor], turn: Tensor) -> Tensor:
        """Key-value rows [..., head_dim] as the ring stores them."""
        return mxfp8(rotate(self.kv_norm(F.linear(u, stored["wkv"])), turn))

    def output(self, o: Tensor, stored: dict[str, Tensor], turn: Tensor) -> Tensor:
        """Results of the heads [..., heads, head_dim] to [..., d]."""
        groups = self.sizes.o_groups
        o = torch.unflatten(rotate(o, turn.unsqueeze(-3), inverse=True).flatten(-2), -1, (groups, -1))
        first = torch.unflatten(stored["wo_a"], 0, (groups, -1))
        z = torch.einsum("...gk,grk->...gr", o.to(first.dtype), first)
        return F.linear(z.flatten(-2), stored["wo_b"])

    def forward(self, u: Tensor, stored: dict[str, Tensor], turns: Tensor, shared: Shared) -> Tensor:
        """u [B, T, d], the first rows of their sequences, to [B, T, d]; ``turns`` is the layer's table."""
        length, sizes = u.shape[1], self.sizes
        turn = turns[:length]
        qr, q = self.queries(u, stored, turn)
        k = self.rows(u, stored, turn)
        kind = product_type(q)
        q, k = q.to(kind), k.to(kind)
        if not self.ratio or self.layer >= sizes.num_hidden_layers:
            return self.output(window_attention(q, k, self.attn_sink, sizes.sliding_window), stored, turn)
        visible = (torch.arange(length, device=u.device) + 1) // self.ratio
        if self.is_kv_source:
            latent, positions = self.compressor(u), turns[: length : self.ratio]
            shared.entries[self.layer] = nvfp4(rotate(latent, positions)).to(kind)
            shared.index_keys[self.layer] = self.indexer.keys(latent, positions)
        source = sizes.source_of(self.layer, sizes.kv_source_layer_ids)
        scores = None
        if self.is_index_source:
            scores = self.indexer(u, qr, stored["indexer.wq_b"], shared.index_keys[source], turn)
            shared.selections[self.layer] = self._select(scores.detach(), visible, shared)
        selected = shared.selections[sizes.source_of(self.layer, sizes.index_source_layer_ids)]
        o, far = sparse_attention(q, k, shared.entries[source], selected, self.attn_sink, sizes.sliding_window)
        if scores is not None:
            shared.index_losses.append(index_loss(scores, far.detach(), visible))
        return self.output(o, stored, turn)

    def _select(self, scores: Tensor, visible: Tensor, shared: Shared) -> Tensor:
        sizes = self.sizes
        seen = torch.arange(scores.shape[-1], device=scores.device) < visible[:, None]
        scores = scores.masked_fill(~seen, -torch.inf)
        if self.layer == sizes.candidate_source_layer_id:
            shared.candidates = candidate_mask(scores, visible, sizes.candidate_topk_blocks, sizes.candidate_block_size)
        elif self.layer > sizes.candidate_source_layer_id:
            assert shared.candidates is not None
            scores = scores.masked_fill(~shared.candidates, -torch.inf)
        return choose(scores, sizes.index_topk)
