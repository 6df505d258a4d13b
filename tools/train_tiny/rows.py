"""Rows of tokens in an order that a seed fixes, so that a run can start again in the middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from refusals import run_first, too_little_text, unreadable


class Rows:
    """Cuts a stream of ids into rows of ``length`` + 1, anew in every epoch and shuffled.

    ``InputError`` (DI443) for a stream that is shorter than the rows of a step.
    """

    def __init__(self, tokens: npt.NDArray[np.uint16], length: int, batch: int, seed: int) -> None:
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed
        # The last row is left to the shift between epochs.
        self.steps_per_epoch = ((len(tokens) - 1) // length - 1) // batch
        if self.steps_per_epoch < 1:
            raise too_little_text(f"{len(tokens)} tokens do not fill a step of {batch} rows of {length}")

    def at(self, step: int) -> npt.NDArray[np.int64]:
        """The rows [batch, length + 1] of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        random = np.random.default_rng((self.seed, epoch))
        shift = int(random.integers(self.length))
        order = random.permutation((len(self.tokens) - 1 - shift) // self.length)
        starts = shift + order[place * self.batch : (place + 1) * self.batch] * self.length
        return rows_from(self.tokens, starts, self.length)


def load_tokens(work: Path, split: str) -> npt.NDArray[np.uint16]:
    """The ids of a split, as ``data`` wrote them; ``InputError`` (DI442) if it did not."""
    path = work / f"tokens-{split}.npy"
    try:
        tokens: npt.NDArray[np.uint16] = np.load(path)
    except (OSError, EOFError, ValueError) as fault:
        raise unreadable(f"the token file of the {split} split", path, fault, run_first("data")) from fault
    return tokens


def rows_from(tokens: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """The rows [n, length + 1] that begin at ``starts`` [n]."""
    rows: npt.NDArray[np.int64] = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return rows


def whole_rows(tokens: npt.NDArray[np.uint16], length: int, batch: int) -> npt.NDArray[np.int64]:
    """All full rows of a held-out stream in order, [n, batch, length + 1]; the rest that fills no batch is left out.

    ``InputError`` (DI443) if there is no batch.
    """
    count = (len(tokens) - 1) // length // batch * batch
    if not count:
        raise too_little_text(f"{len(tokens)} held-out tokens do not fill a batch of {batch} rows of {length}")
    starts = np.arange(count) * length
    return rows_from(tokens, starts, length).reshape(-1, batch, length + 1)
