"""YOCO prefill truncation: which rows of a step live on from the first consumer layer on, and what they may see.

Of a prompt of N tokens the positions from ``floor`` = max(0, N - keep_tokens) on are kept, and everything after it:
the floor belongs to the prompt, not to a chunk, so that a chunk may keep none of its rows and every cut of a prompt
gives the same. Window keys of the truncated layers exist from the floor on; what their rings hold below it belongs to
an earlier owner. At least a window is kept, so that the windows of decode rows and draft blocks, which begin behind the
prompt, lie above the floor: their steps need none of this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.plan_types import ModelPlan, YocoPlan

_MODES = ("compact", "mask")


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The rows of a step that run in the truncated layers.

    ``batch`` holds these rows; its ``history`` stays that of the step, which no truncated layer reads. ``floor`` int64
    [R] is the first position of each sequence that these layers know. ``tokens`` int64 [L] are the live rows among the
    step's T tokens; None when all are. ``kept`` bool [T] marks the rows whose results count: with ``mask`` all rows
    live, kept or not.
    """

    batch: ForwardBatch
    floor: Tensor
    tokens: Tensor | None
    kept: Tensor

    def select(self, values: Tensor) -> Tensor:
        """The live rows of ``values`` [T, ...]."""
        return values if self.tokens is None else values.index_select(0, self.tokens)

    def places(self, tokens: Tensor) -> Tensor:
        """Where the kept ones of the step's tokens, int64 [K], stand among the live rows.

        ``ValueError`` names a token that truncation drops: it has no result.
        """
        missing = torch.nonzero(~self.kept.index_select(0, tokens)).view(-1)
        if missing.numel():
            raise ValueError(
                f"results of the step's token {int(tokens[missing[0]])} are asked for, which prefill truncation drops:"
                f" the step has {self.kept.numel()} tokens and keeps {int(self.kept.sum())}"
            )
        if self.tokens is None:
            return tokens
        return (self.kept.cumsum(0) - 1).index_select(0, tokens)


def live_rows(batch: ForwardBatch, plan: YocoPlan) -> LiveRows:
    """The rows of ``batch`` that run from ``plan.first_consumer_layer`` on."""
    floor = (batch.prefill_len - plan.keep_tokens).clamp_(min=0)
    kept = batch.positions >= floor.index_select(0, batch.row_of_token)
    tokens = torch.nonzero(kept).view(-1)
    if plan.mode == "mask" or tokens.numel() == kept.numel():
        return LiveRows(batch, floor, None, kept)
    # The kept rows of a sequence are its last ones: their number follows from where the step ends.
    q_len = torch.minimum(batch.q_len, (batch.k_len - floor).clamp_(min=0))
    narrowed = replace(
        batch,
        input_ids=batch.input_ids.index_select(0, tokens),
        positions=batch.positions.index_select(0, tokens),
        row_of_token=batch.row_of_token.index_select(0, tokens),
        q_start=q_len.cumsum(0) - q_len,
        q_len=q_len,
    )
    return LiveRows(narrowed, floor, tokens, kept)


def check_truncation(plan: ModelPlan) -> None:
    """``InputError`` unless the layers from the cut on can run on kept rows alone.

    A KV source behind the cut would store entries of the kept rows only, and an Engram behind it would read the ids
    before them; both give wrong results silently.
    """
    yoco = plan.yoco
    if yoco is None:
        return
    window = plan.constants["sliding_window"]
    if yoco.mode not in _MODES or not 0 <= yoco.first_consumer_layer < len(plan.layers):
        raise _bad_plan(
            "DI425",
            f"{yoco} is no prefill truncation of {len(plan.layers)} layers: the mode is one of {', '.join(_MODES)}, and"
            " the cut lies before a layer",
        )
    if yoco.keep_tokens < int(window):
        raise _bad_plan(
            "DI427",
            f"prefill truncation keeps {yoco.keep_tokens} tokens of a prompt, and the window that what follows reads is"
            f" {window}",
        )
    for layer in plan.layers[yoco.first_consumer_layer :]:
        is_late_source = layer.is_kv_source and layer.index > yoco.first_consumer_layer
        if is_late_source or layer.engram:
            what = "is a KV source" if is_late_source else "has an Engram"
            raise _bad_plan(
                "DI426",
                f"layer {layer.index} {what}, but from layer {yoco.first_consumer_layer} on only the last"
                f" {yoco.keep_tokens} rows of a prompt run",
            )


def _bad_plan(code: str, message: str) -> InputError:
    return InputError(Diagnostic(code, message, file="model_plan.py", help="generate the engine again"))
