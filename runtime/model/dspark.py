"""DSpark, the drafter: a few layers that guess a block of tokens in one pass, and two small heads that refine it.

The draft layers are window-only layers like the backbone's. Behind the newest token their block holds noise, and their
attention reads, besides the block itself, keys that are projected from what the target layers saw of the tokens before
it. The pass guesses all positions at once, so the Markov head then corrects each guess by the token chosen before it,
and the confidence head says how likely each is to be accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.operators import Operators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.draft_context import DraftContext, DraftRows, block_batch
from deepinfer_gen.runtime.model.layer import Layer
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.plan_types import DraftPlan
from deepinfer_gen.runtime.weights import TensorSource

Choose = Callable[[Tensor, int, Tensor], Tensor]
"""Picks draft k of ``rows`` int64 [R]: (logits float32 [R, vocab_size], left unchanged, k, rows) to ids [R]."""


def greedy(logits: Tensor, _draft: int, _rows: Tensor) -> Tensor:
    """The likeliest token of each row."""
    return logits.argmax(1)


@dataclass(frozen=True, slots=True)
class Drafts:
    """``nextn`` drafts of R rows: draft k stands ``k + 1`` places behind the row's newest token.

    ``ids`` int64 [R, nextn]; float32 ``logits`` [R, nextn, vocab_size] are those each id was chosen from; the sigmoid
    of float32 ``confidence_logits`` [R, nextn] is the probability of acceptance, given that all before are accepted.
    """

    ids: Tensor
    logits: Tensor
    confidence_logits: Tensor


class Drafter(nn.Module):
    """The draft layers with their projection of target features, which only the first has, and heads, only the last.

    Embedding and LM head are the backbone's.
    """

    main_norm: Tensor
    norm: Tensor
    markov_embed: Tensor

    def __init__(self, source: TensorSource, plan: DraftPlan, constants: Constants, operators: Operators) -> None:
        super().__init__()
        first, last = plan.layers[0].prefix, plan.layers[-1].prefix
        self.plan, self.operators = plan, operators
        self.eps, self.max_positions = constants.rms_norm_eps, constants.max_positions
        self.main_proj = Matrix(source, f"{first}.main_proj")
        self.register_buffer("main_norm", source.stored(f"{first}.main_norm.weight"))
        layers = [Layer(source, layer, constants, operators) for layer in plan.layers]
        self.layers, self._attentions = nn.ModuleList(layers), [layer.attention for layer in layers]
        self.register_buffer("norm", source.stored(f"{last}.norm.weight"))
        self.register_buffer("markov_embed", source.stored(f"{last}.markov_head.embed.weight"))
        self.markov_head = Matrix(source, f"{last}.markov_head.head")
        self.confidence_head = Matrix(source, f"{last}.confidence_head.proj")

    def observe(self, features: Tensor, step: StepContext) -> None:
        """Store every draft layer's key of each token of a backbone step, accepted later or not.

        ``features`` [T, targets * d] joins what the target layers saw, in layer order.
        """
        main = rms_norm(self.operators.linear(features, self.main_proj), self.main_norm, self.eps)
        for attention in self._attentions:
            attention.store_rows(attention.encode_rows(main, step), step)

    def block(self, rows: DraftRows) -> ForwardBatch:
        """The tokens of the draft pass for ``rows``."""
        return block_batch(rows, self.plan.block_size, self.plan.noise_token_id, self.max_positions)

    def forward(self, x: Tensor, pre: Tensor, step: DraftContext) -> Tensor:
        """First streams [R * block_size, n, d] and pre to the collapsed state [R, block_size, d], not normalised."""
        for layer in self.layers:
            x, pre = layer(x, pre, step)
        return self.operators.hyper_collapse(x, pre).view(-1, self.plan.block_size, x.shape[2])

    def refine(self, hidden: Tensor, token: Tensor, rows: Tensor, head: Matrix, choose: Choose) -> Drafts:
        """Choose ``nextn`` tokens one after the other, each from logits that know the token before it.

        ``hidden`` [R, block_size, d] is the state of the pass, ``token`` int64 [R] the newest tokens, ``head`` the LM
        head; ``choose`` knows the rows as ``rows`` int64 [R]. The logits come from the normalised state, the confidence
        from the state itself.
        """
        ops, hidden = self.operators, hidden[:, : self.plan.nextn]
        normed = rms_norm(hidden, self.norm, self.eps).to(torch.float32)
        guesses = ops.linear(normed.flatten(0, 1), head).view(*hidden.shape[:2], -1)
        states = hidden.to(torch.float32)
        ids: list[Tensor] = []
        logits: list[Tensor] = []
        confidences: list[Tensor] = []
        for k in range(self.plan.nextn):
            previous = self.markov_embed.index_select(0, token).to(torch.float32)
            logits.append(guesses[:, k] + ops.linear(previous, self.markov_head))
            confidences.append(ops.linear(torch.cat([states[:, k], previous], 1), self.confidence_head))
            token = choose(logits[k], k, rows)
            ids.append(token)
        return Drafts(torch.stack(ids, 1), torch.stack(logits, 1), torch.cat(confidences, 1))
