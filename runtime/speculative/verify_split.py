"""Which drafts a step verifies, on the device: the torch form of ``engine/survival.hpp`` and ``engine/split.hpp``.

The host fixes the total before it knows the newest confidences; the device splits it by them. Integers throughout, so
that both give the same bits; shapes depend on the batch only, and nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def survivals(confidences: Tensor) -> Tensor:
    """Survival of each draft in 1/65536.

    ``confidences`` is uint16 [rows, nextn] (or any wider integer type); the result is int64 [rows, nextn]. s_0 = 65536,
    s_k = (s_(k-1) x c_k) >> 16.
    """
    wide = confidences.to(torch.int64)
    survival = torch.full_like(wide[:, 0], 1 << 16)
    columns = []
    for column in wide.unbind(1):
        survival = (survival * column) >> 16
        columns.append(survival)
    return torch.stack(columns, 1)


def split_drafts(confidences: Tensor, caps: Tensor, count: Tensor | int) -> Tensor:
    """Drafts that each row verifies, int32 [rows]: the first ``count`` by survival descending, position, row.

    ``confidences`` is uint16 [rows, nextn]; ``caps`` int32 [rows], the most drafts of each row (0 for padding rows);
    ``count`` is at most their sum, a number or an integer tensor without dimensions.
    """
    rows, nextn = confidences.shape
    drafts = rows * nextn
    position = torch.arange(nextn, device=caps.device)
    turn = position * rows + torch.arange(rows, device=caps.device).unsqueeze(1)
    # Every key occurs once, so the order is complete and any sort gives it.
    keys = survivals(confidences) * drafts + (drafts - 1 - turn)
    keys = torch.where(position < caps.unsqueeze(1), keys, -1)
    ranked = torch.sort(keys.flatten(), descending=True).values
    # One key more, over all others, stands before the first: no draft reaches it when none is verified.
    ranked = torch.cat([ranked.new_full((1,), torch.iinfo(torch.int64).max), ranked])
    last = ranked.gather(0, torch.as_tensor(count, device=caps.device).to(torch.int64).reshape(1))
    return (keys >= last).sum(1).to(torch.int32)
