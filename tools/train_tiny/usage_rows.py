"""Rows that look like the model's use: some begin with a function's head, some fall into a loop that they should leave.

A greedy continuation of a small model tends to repeat its last lines for ever, because every repetition makes the next
one likelier. Rows of the second kind repeat a few lines of the corpus to the end, and ``loop_loss`` asks that each time
they are half as likely as before (Xu et al. 2022, "Learning to break the loop").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from refusals import too_little_text
from rows import Rows, rows_from
from tables import Tables
from torch import Tensor

_FADING = 0.5
_BARE = 0.5
_LINES = 3
_LOOP_TOKENS = (4, 96)
_CONTEXT = 16, 0.4
"""Tokens before a loop at least, and share of the row at most."""


class UsageRows:
    """Rows [batch, length + 3]: ids, and in the last two columns where a loop begins and how long one round is.

    ``tables`` tells which tokens begin lines and heads. Of a batch the first quarter are loops, the next three eighths
    begin with a head, the rest are those of ``Rows``; a row without a loop has zeros in both columns. ``InputError``
    (DI443) for a stream without a head or a line that can be repeated.
    """

    def __init__(self, plain: Rows, tables: Tables) -> None:
        self.plain, tokens = plain, plain.tokens
        lines = np.flatnonzero(tables.begins_line.numpy()[tokens])
        self.lines = lines[lines < len(tokens) - plain.length - 2]
        self.heads = self.lines[tables.is_head.numpy()[tokens[self.lines + 1]]]
        self.is_break = tables.is_break.numpy()
        sizes = np.diff(self.lines[1 : 1 - _LINES])
        if not len(self.heads) or not ((sizes >= _LOOP_TOKENS[0]) & (sizes <= _LOOP_TOKENS[1])).any():
            raise too_little_text(f"{len(tokens)} tokens hold no function's head or no line that could be repeated")

    def at(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of a step."""
        random = np.random.default_rng((self.plain.seed, 1, step))
        rows = np.zeros((self.plain.batch, self.plain.length + 3), dtype=np.int64)
        rows[:, :-2] = self.plain.at(step)
        loops, heads = self.plain.batch // 4, self.plain.batch * 3 // 8
        for row in rows[:loops]:
            self._loop(row, random)
        starts = random.choice(self.heads, heads)
        # Heads without indentation also without the line break before, as at the start of a prompt.
        starts += self.is_break[self.plain.tokens[starts]] & (random.random(heads) < _BARE)
        rows[loops : loops + heads, :-2] = rows_from(self.plain.tokens, starts, self.plain.length)
        return rows

    def _loop(self, row: npt.NDArray[np.int64], random: np.random.Generator) -> None:
        """Overwrite a row with lines of the corpus behind their context, repeated to its end."""
        while True:
            place = int(random.integers(1, len(self.lines) - _LINES))
            start, end = self.lines[place], self.lines[place + int(random.integers(1, _LINES + 1))]
            if _LOOP_TOKENS[0] <= end - start <= _LOOP_TOKENS[1]:
                break
        ids, (least, share) = row[:-2], _CONTEXT
        context = min(int(random.integers(least, int(share * len(ids)))), int(start))
        ids[:context] = self.plain.tokens[start - context : start]
        ids[context:] = np.resize(self.plain.tokens[start:end], len(ids) - context)
        row[-2:] = context, end - start


def usage_losses(entropy: Tensor, loop_start: Tensor, loop_length: Tensor) -> tuple[Tensor, Tensor]:
    """Nats per token of the rows without a loop, and ``loop_loss`` of the others, from the nats of each token [B, T].

    ``loop_start`` and ``loop_length`` int64 [B] are the last columns of ``UsageRows``; row t predicts id t + 1.
    """
    plain = (loop_length == 0).unsqueeze(1).expand_as(entropy)
    next_id = torch.arange(1, entropy.shape[1] + 1, device=entropy.device)
    repeated = ~plain & (next_id >= (loop_start + loop_length).unsqueeze(1))
    return _mean(entropy, plain), _mean(loop_loss(entropy, loop_length), repeated)


def loop_loss(entropy: Tensor, loop_length: Tensor) -> Tensor:
    """How far each token's probability is from ``_FADING`` times that of one round earlier, [B, T]."""
    likely = torch.exp(-entropy)
    place = torch.arange(entropy.shape[1], device=entropy.device) - loop_length.unsqueeze(1)
    earlier = likely.detach().gather(1, place.clamp(min=0))
    return -torch.log1p(1e-6 - (likely - _FADING * earlier).abs())


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return (values * where).sum() / where.sum().clamp(min=1)
