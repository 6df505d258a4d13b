"""DeepSeek-V4.1-Flash: the forward pass over paged caches, driven by the generated layer list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.operators import Operators, ReferenceOperators
from deepinfer_gen.runtime.kernels.reference.norm import rms_norm
from deepinfer_gen.runtime.kv_cache import KVCache
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.draft_context import DraftContext, DraftRows
from deepinfer_gen.runtime.model.dspark import Choose, Drafter, Drafts, greedy
from deepinfer_gen.runtime.model.engram import ngram_classes
from deepinfer_gen.runtime.model.layer import Layer
from deepinfer_gen.runtime.model.numerics import NUMERICS
from deepinfer_gen.runtime.model.rope import rotary_table
from deepinfer_gen.runtime.model.single_tokens import single_tokens
from deepinfer_gen.runtime.model.step_context import StepContext
from deepinfer_gen.runtime.model.step_counts import StepCounts
from deepinfer_gen.runtime.model.stored import Matrix
from deepinfer_gen.runtime.model.token_map import engram_token_map
from deepinfer_gen.runtime.model.truncation import check_truncation, live_rows
from deepinfer_gen.runtime.plan_types import KernelConfig, ModelPlan
from deepinfer_gen.runtime.weights import TensorSource, load_weights


class Model(nn.Module):
    """Backbone, LM head and, where the engine drafts, the drafter, with weights as stored.

    ``report`` says what was read from the checkpoint, ``counts`` what the latest ``forward`` computed and wrote.
    """

    embed: Tensor
    norm: Tensor
    token_map: Tensor
    first_pre: Tensor

    def __init__(self, plan: ModelPlan, source: TensorSource, operators: Operators, token_map: list[int]) -> None:
        super().__init__()
        check_truncation(plan)
        c = Constants.of(plan)
        self.counts = StepCounts()
        self.plan, self.constants, self.operators, self.report = plan, c, operators, source.report
        self.register_buffer("embed", source.stored("embed.weight"))
        self.register_buffer("norm", source.stored("norm.weight"))
        self.head = Matrix(source, "head")
        self.register_buffer("token_map", torch.tensor(token_map, dtype=torch.int64))
        self.register_buffer("first_pre", torch.eye(1, c.hc_mult))
        for name, rope in plan.rope.items():
            self.register_buffer(f"rotary_{name}", rotary_table(rope, c.qk_rope_head_dim, c.max_positions))
        targets = plan.draft.target_layers if plan.draft else ()
        self.layers = nn.ModuleList(
            Layer(source, layer, c, operators, is_draft_target=layer.index in targets) for layer in plan.layers
        )
        self.drafter = Drafter(source, plan.draft, c, operators) if plan.draft else None
        self.has_engram = any(layer.engram for layer in plan.layers)

    def begin(self, batch: ForwardBatch, cache: KVCache) -> StepContext:
        """What the layers of one step share; what they do is added to ``counts``."""
        ngrams = None
        if self.has_engram:
            pad_class = self.token_map[self.constants.engram_pad_token_id]
            ngrams = ngram_classes(batch, self.token_map, pad_class)
        return StepContext(batch, cache, self._rotary(), ngrams, counts=self.counts)

    def forward(self, batch: ForwardBatch, cache: KVCache, output_tokens: Tensor) -> Tensor:
        """Run one step of ragged rows, prefill chunks or decode rows alike, and store its keys and states in ``cache``.

        Where the engine drafts, the drafter's keys of all T tokens are stored with them, so that ``draft`` may follow.
        ``output_tokens`` int64 [K] are the tokens (indices into T) whose logits are wanted. Returns float32
        [K, vocab_size], which the caller may change in place. ``ValueError`` when a token is among them that prefill
        truncation drops.
        """
        self.counts = StepCounts()
        # Inference mode saves a sixth of a small step; a copy made outside it is an ordinary tensor again.
        with torch.inference_mode():
            if self.plan.batch_invariant:
                logits = self._token_by_token(batch, cache, output_tokens)
            else:
                logits = self._step(self.begin(batch, cache), output_tokens)
        return logits.clone()

    def draft(self, rows: DraftRows, cache: KVCache, choose: Choose = greedy) -> Drafts:
        """Draft ``nextn`` tokens behind the newest token of each row, in one pass; ``cache`` is only read.

        All tokens before the newest must have been through ``forward``; what it stored of rejected ones is not read.
        ``choose`` picks each draft from its logits. Raises ``ValueError`` for an engine that does not draft.
        """
        if self.drafter is None:
            raise ValueError("the engine was generated with speculative.nextn: 0 and has no drafter")
        every = torch.arange(rows.token.shape[0], device=rows.token.device)
        with torch.inference_mode():
            parts = [
                self._draft(self.drafter, rows, part, cache, choose)
                for part in torch.split(every, 1 if self.plan.batch_invariant else len(every))
            ]
        fields = zip(*((p.ids, p.logits, p.confidence_logits) for p in parts), strict=True)
        # Joined outside inference mode they are ordinary tensors again.
        return Drafts(*(torch.cat(field) for field in fields))

    def _draft(self, drafter: Drafter, rows: DraftRows, part: Tensor, cache: KVCache, choose: Choose) -> Drafts:
        """Draft for some of the ``rows``, named by ``part`` int64 [n]."""
        some = DraftRows(*(values.index_select(0, part) for values in (rows.token, rows.position, rows.slot)))
        step = DraftContext(drafter.block(some), cache, self._rotary())
        hidden = drafter(*self.first_streams(step.batch.input_ids), step)
        return drafter.refine(hidden, some.token, part, self.head, choose)

    def _token_by_token(self, batch: ForwardBatch, cache: KVCache, output_tokens: Tensor) -> Tensor:
        """``_step`` for each token alone."""
        logits = self.norm.new_empty((output_tokens.shape[0], self.constants.vocab_size), dtype=torch.float32)
        for place, single in single_tokens(batch):
            rows = torch.nonzero(output_tokens == place).view(-1)
            # Of one token, its own logits or none: truncation may have dropped it.
            logits[rows] = self._step(self.begin(single, cache), rows.new_zeros(min(len(rows), 1)))
        return logits

    def _step(self, step: StepContext, output_tokens: Tensor) -> Tensor:
        x, pre = self.first_streams(step.batch.input_ids)
        yoco = self.plan.yoco
        for layer in self.layers:
            assert isinstance(layer, Layer)
            if yoco is not None and step.batch.prefills and layer.index == yoco.first_consumer_layer:
                layer.store_entries(x, pre, step)
                live = live_rows(step.batch, yoco)
                x, pre, step = live.select(x), live.select(pre), step.truncated(live)
                output_tokens = live.places(output_tokens)
            x, pre = layer(x, pre, step)
        if self.drafter is not None:
            self.drafter.observe(torch.cat(step.features, 1), step)
        return self.logits(x.index_select(0, output_tokens), pre.index_select(0, output_tokens))

    def _rotary(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(f"rotary_{name}") for name in self.plan.rope}

    def first_streams(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [T] to n copies of their embeddings [T, n, d], and pre [T, n] that picks the first."""
        embedded = self.embed.index_select(0, ids).to(self.operators.numerics.activation)
        return embedded.unsqueeze(1).repeat(1, self.constants.hc_mult, 1), self.first_pre.expand(len(ids), -1)

    def logits(self, x: Tensor, pre: Tensor) -> Tensor:
        """LM head on streams [K, n, d] collapsed by the last FFN's pre [K, n]; float32 [K, vocab_size]."""
        hidden = rms_norm(self.operators.hyper_collapse(x, pre), self.norm, self.constants.rms_norm_eps)
        return self.operators.linear(hidden.to(torch.float32), self.head)


def load_model(plan: ModelPlan, kernels: Mapping[str, KernelConfig], folder: Path) -> Model:
    """Read the checkpoint in ``folder`` and build the model that ``plan`` and ``kernels`` describe.

    Raises ``InputError`` for a policy that is not built, a kernel table that does not fit, and every fault of the
    checkpoint; nothing is half loaded.
    """
    if plan.policy not in NUMERICS:
        raise InputError(
            Diagnostic(
                "DI346",
                f"the runtime runs the policies {', '.join(NUMERICS)}; this engine has policy '{plan.policy}'",
                file="model_plan.py",
                help="generate the engine again with one of them",
            )
        )
    constants, operators = Constants.of(plan), ReferenceOperators(kernels, NUMERICS[plan.policy])
    token_map = engram_token_map(folder, constants)
    return Model(plan, load_weights(plan, constants, folder), operators, token_map)
