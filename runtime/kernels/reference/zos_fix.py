"""Completing a step that was scheduled before the step ahead of it had ended (zero-overhead scheduling).

The host schedules step N + 1 while step N runs. It takes every draft of step N for accepted, so its lengths and
positions are upper bounds, and of the rows that were in step N it knows no new token. All of that is on the device when
step N + 1 starts there; ``remap`` says where. All tensors are int64; every row is computed from its own places only,
and nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PlannedRows(NamedTuple):
    """The R rows of a step as the host planned them, with the verification lengths that it has now.

    ``remap`` [R]: the row's index in the step before, -1 for a row that was not in it (padding rows too). ``start``
    [R]: planned position of the row's first query. ``q_start``, ``q_len`` [R]: its queries among the step's tokens.
    ``tokens`` [R, max_q] and ``history`` [R, depth] (the ids before the first query, oldest first, -1 before the
    sequence starts) count for rows with remap -1 only.
    """

    remap: Tensor
    start: Tensor
    q_start: Tensor
    q_len: Tensor
    tokens: Tensor
    history: Tensor


class LastStep(NamedTuple):
    """The P rows of the step before, in the buffers of the device; P is at least 1.

    ``assumed`` [P]: tokens that the host takes the row for having yielded (1 + its cap of drafts while the step is not
    committed, since a second split may verify as many; the true count afterwards). ``counts`` [P]: tokens that it
    yielded, 1 .. max_q for a row that goes on. ``first`` [P]: its first query's token. ``tokens`` [P, max_q]: what it
    yielded, the accepted drafts and the token after them. ``drafts`` [P, max_q - 1]: the drafts that follow those.
    ``history`` [P, depth]: ids before ``first``.
    """

    assumed: Tensor
    counts: Tensor
    first: Tensor
    tokens: Tensor
    drafts: Tensor
    history: Tensor


class StepTokens(NamedTuple):
    """The step as it runs: ``k_len`` [R]; ``input_ids``, ``positions``, ``row_of_token`` [T]; ``history`` [R, n]."""

    k_len: Tensor
    input_ids: Tensor
    positions: Tensor
    row_of_token: Tensor
    history: Tensor


def zos_fix(planned: PlannedRows, last: LastStep, total_q: int) -> StepTokens:
    """Correct lengths and positions by the accepted counts, and gather tokens and history tails through ``remap``.

    ``total_q`` is T, the sum of ``planned.q_len``, which a split on the device leaves as the host planned it.
    """
    device, depth, max_q = planned.remap.device, planned.history.shape[1], planned.tokens.shape[1]
    known = planned.remap >= 0
    source = planned.remap.clamp(min=0)
    counts = last.counts[source]
    start = torch.where(known, planned.start - last.assumed[source] + counts, planned.start)

    newest = last.tokens[source].gather(1, (counts - 1).clamp(min=0).unsqueeze(1))
    queries = torch.where(known.unsqueeze(1), torch.cat([newest, last.drafts[source]], 1), planned.tokens)
    row = torch.repeat_interleave(
        torch.arange(planned.remap.shape[0], device=device), planned.q_len, output_size=total_q
    )
    offset = torch.arange(total_q, device=device) - planned.q_start[row]

    # The ids of a row in order; its tail ends before the newest.
    sequence = torch.cat([last.history, last.first.unsqueeze(1), last.tokens], 1)[source]
    place = (counts.unsqueeze(1) + torch.arange(depth, device=device)).clamp(max=depth + max_q)
    return StepTokens(
        k_len=start + planned.q_len,
        input_ids=queries[row, offset],
        positions=start[row] + offset,
        row_of_token=row,
        history=torch.where(known.unsqueeze(1), sequence.gather(1, place), planned.history),
    )
