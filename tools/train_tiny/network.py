"""The backbone over whole sequences, differentiable, with the parameters under their released names.

The same formulas as ``deepinfer_gen.runtime.model``, which runs steps over paged caches; ``tests/train_tiny`` holds one
against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from attention import Attention, Norm, Projection, Shared
from engram import Engram
from experts import MixtureOfExperts
from sizes import Sizes
from storage import stored_weights
from streams import HyperConnection, collapse_norm, expand, rotation
from tables import Hashes
from torch import Tensor, nn


class Layer(nn.Module):
    """Engram, attention and experts joined by lagged hyper-connections."""

    def __init__(self, sizes: Sizes, layer: int, hashes: Hashes | None, experts: int, per_token: int) -> None:
        super().__init__()
        self.engram = None if hashes is None else Engram(sizes, hashes)
        self.hc_attn, self.hc_ffn = HyperConnection(sizes), HyperConnection(sizes)
        self.attn_norm, self.ffn_norm = Norm(sizes.hidden_size), Norm(sizes.hidden_size)
        self.attn = Attention(sizes, layer)
        self.ffn = MixtureOfExperts(sizes, experts, per_token)

    def attended(
        self, x: Tensor, pre: Tensor, attend: Callable[[Tensor], Tensor], dropout: float
    ) -> tuple[Tensor, Tensor]:
        """The attention site: streams and pre to streams and the pre of the FFN site; ``attend`` maps u to y."""
        next_pre, post, comb = self.hc_attn(x)
        y = attend(collapse_norm(x, pre, self.attn_norm.weight))
        return expand(F.dropout(y, dropout, self.training), x, post, comb), next_pre

    def fed(self, x: Tensor, pre: Tensor, stored: dict[str, Tensor], dropout: float) -> tuple[Tensor, Tensor]:
        """The FFN site; also the pre that the next layer uses."""
        last_pre, post, comb = self.hc_ffn(x)
        y = self.ffn(collapse_norm(x, pre, self.ffn_norm.weight), stored)
        return expand(F.dropout(y, dropout, self.training), x, post, comb), last_pre


class Backbone(nn.Module):
    """Token ids to logits. ``token_map`` int64 [vocab_size] gives the Engram class of each id."""

    token_map: Tensor
    turns_base: Tensor
    turns_compressed: Tensor

    def __init__(self, sizes: Sizes, token_map: Tensor, hashes: dict[int, Hashes], dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes, self.dropout = sizes, dropout
        self.embed = Projection(sizes.vocab_size, sizes.hidden_size)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.layers = nn.ModuleList(
            Layer(sizes, i, hashes.get(i), sizes.n_routed_experts, sizes.num_experts_per_tok)
            for i in range(sizes.num_hidden_layers)
        )
        self.norm = Norm(sizes.hidden_size)
        self.head = Projection(sizes.vocab_size, sizes.hidden_size, gain=0.3)
        self.register_buffer("token_map", token_map, persistent=False)
        for name, compressed in (("base", False), ("compressed", True)):
            self.register_buffer(f"turns_{name}", rotation(sizes, compressed), persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """ids int64 [B, T], T a multiple of the window and of the candidate block: logits [B, T, V], the draft
        targets' features [B, T, targets * d] and the losses of the indexers.
        """
        sizes = self.sizes
        stored = stored_weights(self)
        classes = self.token_map[ids]
        pad_class = self.token_map[sizes.engram_pad_token_id].view(1, 1)
        x, pre = first_streams(self.embed.weight, ids, sizes)
        shared = Shared({}, {}, {}, [])
        features = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            own = stored[f"layers.{i}"]
            if layer.engram is not None:
                rows = layer.engram.rows(classes, pad_class)
                x = layer.engram(x, rows, own["engram"], 2 * self.dropout)
            if i in sizes.dspark_target_layer_ids:
                features.append(x.mean(2))
            turns = self.turns_compressed if sizes.compress_ratios[i] else self.turns_base
            attend = partial(layer.attn, stored=own["attn"], turns=turns, shared=shared)
            x, pre = layer.attended(x, pre, attend, self.dropout)
            x, pre = layer.fed(x, pre, own["ffn"], self.dropout)
        logits = self.head(collapse_norm(x, pre, self.norm.weight))
        return logits, torch.cat(features, -1), shared.index_losses


def first_streams(embedding: Tensor, ids: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Copies of the embedding [..., n, d], and the pre [..., n] that reads the first of them."""
    x = F.embedding(ids, embedding).unsqueeze(-2).repeat_interleave(sizes.hc_mult, -2)
    pre = torch.zeros(x.shape[:-1], device=x.device)
    pre[..., 0] = 1
    return x, pre


def named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a training checkpoint by its released name, views of the model's own; experts one by one."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if ".experts." in name:
            prefix, _, role = name.rpartition(".")
            yield from ((f"{prefix}.{e}.{role}", tensor[e]) for e in range(len(tensor)))
        elif name.endswith("gate.bias"):
            yield name, tensor
            yield f"{name}_vl", tensor
        elif isinstance(tensor, nn.Parameter):
            yield name.replace("hc_attn.", "hc_attn_").replace("hc_ffn.", "hc_ffn_"), tensor
