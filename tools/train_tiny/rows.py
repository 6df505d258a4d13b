"""Rows of tokens in an order that a seed fixes, so that a run can start again in the middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt


class Rows:
    """Cuts a stream of ids into rows of ``length`` + 1, anew in every epoch and shuffled."""

    def __init__(self, tokens: npt.NDArray[np.uint16], length: int, batch: int, seed: int) -> None:
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed
        # The last row is left to the shift between epochs.
        self.steps_per_epoch = ((len(tokens) - 1) // length - 1) // batch

    def at(self, step: int) -> npt.NDArray[np.int64]:
        """The rows [batch, length + 1] of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        random = np.random.default_rng((self.seed, epoch))
        shift = int(random.integers(self.length))
        order = random.permutation((len(self.tokens) - 1 - shift) // self.length)
        starts = shift + order[place * self.batch : (place + 1) * self.batch] * self.length
        return rows_from(self.tokens, starts, self.length)


def load_tokens(work: Path, split: str) -> npt.NDArray[np.uint16]:
    """The ids of a split, as ``data`` wrote them."""
    tokens: npt.NDArray[np.uint16] = np.load(work / f"tokens-{split}.npy")
    return tokens


def rows_from(tokens: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """The rows [n, length + 1] that begin at ``starts`` [n]."""
    rows: npt.NDArray[np.int64] = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return rows


def whole_rows(tokens: npt.NDArray[np.uint16], length: int, batch: int) -> npt.NDArray[np.int64]:
    """All full rows of a held-out stream in order, [n, batch, length + 1]; the rest that fills no batch is left out."""
    count = (len(tokens) - 1) // length // batch * batch
    starts = np.arange(count) * length
    return rows_from(tokens, starts, length).reshape(-1, batch, length + 1)
