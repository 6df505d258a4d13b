"""The DSpark drafter over whole sequences: blocks of drafts behind many anchors at once, against a frozen backbone.

An anchor is a position P whose token has just been chosen. Its block holds that token and noise at P to P + 4; draft k
guesses the token at P + 1 + k. In training the token before each draft is the text's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from attention import Attention, Norm, Projection, product_type
from fusion import fused
from network import Layer, first_streams
from sizes import Sizes, matrix
from storage import stored_weights
from streams import collapse_norm, rotation
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Blocks:
    """Drafts of B x A anchors: ``logits`` [B, A, K, V] and ``confidence_logits`` [B, A, K] of K drafts."""

    logits: Tensor
    confidence_logits: Tensor


class MarkovHead(nn.Module):
    """``embed`` and ``head`` of the Markov head, [V, rank] each."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = Projection(sizes.vocab_size, sizes.dspark_markov_rank)
        self.head = Projection(sizes.vocab_size, sizes.dspark_markov_rank, gain=0.1)


class Confidence(nn.Module):
    """One row over the state and the Markov embedding of the token before."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.proj = Projection(1, sizes.hidden_size + sizes.dspark_markov_rank, gain=0.0)


class DraftLayer(Layer):
    """A window-only layer; the first projects the target features, the last has the heads."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        experts, per_token = sizes.dspark_n_routed_experts, sizes.dspark_num_experts_per_tok
        super().__init__(sizes, sizes.num_hidden_layers + number, None, experts, per_token)
        if number == 0:
            self.main_proj = matrix(sizes.hidden_size, len(sizes.dspark_target_layer_ids) * sizes.hidden_size)
            self.main_norm = Norm(sizes.hidden_size)
        if number == sizes.num_nextn_predict_layers - 1:
            self.norm = Norm(sizes.hidden_size)
            self.markov_head, self.confidence_head = MarkovHead(sizes), Confidence(sizes)


class Drafter(nn.Module):
    """The layers ``mtp.0`` and on."""

    turns: Tensor

    def __init__(self, sizes: Sizes, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes, self.dropout = sizes, dropout
        self.mtp = nn.ModuleList(DraftLayer(sizes, i) for i in range(sizes.num_nextn_predict_layers))
        self.register_buffer("turns", rotation(sizes, compressed=False), persistent=False)

    def forward(self, ids: Tensor, features: Tensor, anchors: Tensor, embedding: Tensor, head: Tensor) -> Blocks:
        """ids [B, T] and the backbone's features [B, T, targets * d]; anchors int64 [B, A] in 1 .. T - block."""
        sizes, stored = self.sizes, stored_weights(self)
        first, last = self.mtp[0], self.mtp[-1]
        assert isinstance(first, DraftLayer)
        assert isinstance(last, DraftLayer)
        main = first.main_norm(F.linear(features, stored["mtp.0"]["main_proj"][""]))
        window, block = sizes.sliding_window, sizes.dspark_block_size
        before = anchors.unsqueeze(-1) + torch.arange(-window, 0, device=ids.device)
        places = anchors.unsqueeze(-1) + torch.arange(block, device=ids.device)
        tokens = torch.full_like(places, sizes.dspark_noise_token_id)
        tokens[..., 0] = ids.gather(1, anchors)
        x, pre = first_streams(embedding, tokens.flatten(1), sizes)
        turn = self.turns[places]
        for i, layer in enumerate(self.mtp):
            assert isinstance(layer, DraftLayer)
            own = stored[f"mtp.{i}"]
            ring = layer.attn.rows(main, own["attn"], self.turns[: ids.shape[1]])
            attend = partial(block_attend, layer.attn, stored=own["attn"], ring=ring, before=before, turn=turn)
            x, pre = layer.attended(x, pre, attend, self.dropout)
            x, pre = layer.fed(x, pre, own["ffn"], self.dropout)
        state = torch.unflatten((x * pre.unsqueeze(-1)).sum(2), 1, places.shape[1:])
        guesses = torch.unflatten(F.linear(collapse_norm(x, pre, last.norm.weight), head), 1, places.shape[1:])
        previous = F.embedding(ids.gather(1, places.flatten(1)).view_as(places), last.markov_head.embed.weight)
        logits = guesses.float() + last.markov_head.head(previous).float()
        evidence = torch.cat([state, previous], -1)
        return Blocks(logits, last.confidence_head.proj(evidence).squeeze(-1).float())


def block_attend(
    attention: Attention, u: Tensor, *, stored: dict[str, Tensor], ring: Tensor, before: Tensor, turn: Tensor
) -> Tensor:
    """A draft layer's attention of u [B, A * K, d], the blocks one after the other; ``turn`` [B, A, K, rope / 2, 2].

    ``ring`` [B, T, D] holds the keys of the text; those ``before`` [B, A, W] an anchor are seen.
    """
    u = torch.unflatten(u, 1, turn.shape[1:3])
    _, q = attention.queries(u, stored, turn)
    keys = attention.rows(u, stored, turn)
    kind = product_type(q)
    o = block_attention(q.to(kind), keys.to(kind), ring.to(kind), before, attention.attn_sink)
    return attention.output(o, stored, turn).flatten(1, 2)


@fused
def block_attention(q: Tensor, keys: Tensor, ring: Tensor, before: Tensor, sink: Tensor) -> Tensor:
    """q [B, A, K, h, D] over its whole block keys [B, A, K, D] and the ring [B, T, D] at ``before`` [B, A, W]."""
    b, a, w = before.shape
    place = before.clamp(min=0).flatten(1).unsqueeze(-1).expand(-1, -1, ring.shape[-1])
    rows = torch.cat([ring.gather(1, place).view(b, a, w, -1), keys], 2)
    scores = torch.einsum("bakhd,bawd->bahkw", q, rows).float() * q.shape[-1] ** -0.5
    hidden = F.pad(before < 0, (0, keys.shape[2]))
    scores = scores.masked_fill(hidden[:, :, None, None], -torch.inf)
    sinks = sink.view(1, 1, -1, 1, 1).expand(b, a, -1, q.shape[2], 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return torch.einsum("bahkw,bawd->bakhd", weights.to(rows.dtype), rows)


@dataclass(frozen=True, slots=True)
class DraftLosses:
    """Means over anchors and positions, weighted by exp(-(k - 1) / 5) for draft k = 1, 2, ...

    A draft agrees if its likeliest token is the target's: the event of greedy verification, which the confidence is to
    predict. ``agreement`` [K] is the share that does, not a loss.
    """

    cross_entropy: Tensor
    total_variation: Tensor
    confidence: Tensor
    agreement: Tensor

    @property
    def total(self) -> Tensor:
        """The weighted sum of the DSpark paper."""
        return 0.1 * self.cross_entropy + 0.9 * self.total_variation + 1.0 * self.confidence


@fused
def draft_losses(logits: Tensor, confidence: Tensor, target: Tensor, truth: Tensor) -> tuple[Tensor, ...]:
    """The parts of ``DraftLosses`` of drafts [B, A, K, V], the backbone's logits of the same and the text [B, A, K]."""
    drafts = logits.shape[2]
    decay = torch.tensor([math.exp(-k / 5) for k in range(drafts)], device=logits.device)
    weights = decay / decay.sum()
    guessed, wanted = logits.float().log_softmax(-1), target.float().log_softmax(-1)
    accepted = torch.minimum(guessed.exp(), wanted.exp()).sum(-1)
    entropy = -guessed.gather(-1, truth.unsqueeze(-1)).squeeze(-1)
    agrees = (logits.argmax(-1) == target.argmax(-1)).float()
    certainty = F.binary_cross_entropy_with_logits(confidence, agrees, reduction="none")
    parts = [(part * weights).sum(-1).mean() for part in (entropy, 1 - accepted, certainty)]
    return *parts, agrees.mean((0, 1))


def losses(blocks: Blocks, ids: Tensor, backbone_logits: Tensor, anchors: Tensor) -> DraftLosses:
    """``ids`` [B, T] and the backbone's logits [B, T, V] of every row."""
    drafts = blocks.logits.shape[2]
    rows = (anchors.unsqueeze(-1) + torch.arange(drafts, device=ids.device)).flatten(1)
    target = backbone_logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, backbone_logits.shape[-1]))
    truth = ids.gather(1, rows + 1)
    shape = blocks.confidence_logits.shape
    return DraftLosses(
        *draft_losses(blocks.logits, blocks.confidence_logits, target.view(*shape, -1), truth.view(shape))
    )
