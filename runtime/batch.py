"""What one forward pass runs on: the tokens of a step, the rows they belong to, and where each row's cache lies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class StepArrays(Protocol):
    """The arrays of a scheduler step (``docs/formats.md`` section 3) that the model reads; borrowed numpy views."""

    @property
    def input_ids(self) -> NDArray[Any]:
        """Token ids [T]."""
        ...

    @property
    def positions(self) -> NDArray[Any]:
        """Position of each token in its sequence [T]."""
        ...

    @property
    def row_of_token(self) -> NDArray[Any]:
        """Row of each token [T]."""
        ...

    @property
    def q_len(self) -> NDArray[Any]:
        """Tokens per row [R]."""
        ...

    @property
    def k_len(self) -> NDArray[Any]:
        """Keys per row after this step's tokens [R]."""
        ...

    @property
    def prefill_len(self) -> NDArray[Any]:
        """Tokens that the prefill of each row's cache computes in all, however it is cut [R]."""
        ...

    @property
    def slot(self) -> NDArray[Any]:
        """State slot per row [R]."""
        ...

    @property
    def block_table(self) -> NDArray[Any]:
        """Blocks per row [R, blocks per sequence]."""
        ...

    @property
    def history(self) -> NDArray[Any]:
        """Ids before each row's first token, oldest first, -1 before the sequence start [R, 3]."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens in R ragged rows, all int64; the tokens of a row are consecutive in T and in position.

    ``input_ids``, ``positions``, ``row_of_token`` [T]; ``q_start`` (first token of the row), ``q_len``, ``k_len`` (keys
    after this step), ``prefill_len`` (tokens that the prefill of the row's cache computes in all: the whole prompt),
    ``slot`` [R]; ``block_table`` [R, blocks per sequence]; ``history`` [R, 3]: the ids before the row's first query,
    oldest first, -1 before the sequence starts. Padding rows name block 0 and slot 0 only. ``prefills`` is known on the
    host: some token lies inside the prefill of its row; in a decode step none does.
    """

    input_ids: Tensor
    positions: Tensor
    row_of_token: Tensor
    q_start: Tensor
    q_len: Tensor
    k_len: Tensor
    prefill_len: Tensor
    slot: Tensor
    block_table: Tensor
    history: Tensor
    prefills: bool = field(kw_only=True)

    @classmethod
    def from_step(cls, step: StepArrays, device: torch.device) -> ForwardBatch:
        """Copy a step's borrowed arrays once; the result stays valid after the scheduler's next step.

        Raises ``ValueError`` when the rows do not cover the tokens, and for a history that lacks an id.
        """
        return BatchBuffer(step, device).fill(step)


class BatchBuffer:
    """Memory for batches of one shape: a graph replays on the same tensors, and filling them makes none."""

    def __init__(self, like: StepArrays, device: torch.device) -> None:
        """Allocate for steps with as many tokens and rows as ``like`` has, in one piece that is copied at once."""
        arrays = _batch_arrays(like)
        self._host = torch.empty(sum(array.size for array in arrays), dtype=torch.int64)
        self._packed = self._host.to(device)
        sizes = [array.size for array in arrays]
        shapes = [array.shape for array in arrays]
        parts = zip(torch.split(self._host, sizes), torch.split(self._packed, sizes), shapes, strict=True)
        views = [(host.view(shape).numpy(), packed.view(shape)) for host, packed, shape in parts]
        self._arrays = [host for host, _ in views]
        self._batch = ForwardBatch(*(packed for _, packed in views), prefills=False)

    def fill(self, step: StepArrays) -> ForwardBatch:
        """Copy a step's borrowed arrays; the batch stays valid until the next call.

        Raises ``ValueError`` when the rows do not cover the tokens, and for a history that lacks an id.
        """
        _check_history(step)
        for target, source in zip(self._arrays, _batch_arrays(step), strict=True):
            target[...] = source
        if self._packed is not self._host:
            self._packed.copy_(self._host)
        return replace(self._batch, prefills=True) if _prefills(step) else self._batch


def _prefills(step: StepArrays) -> bool:
    return bool((step.k_len - step.q_len < step.prefill_len).any())


def _check_history(step: StepArrays) -> None:
    """-1 stands before the sequence start and nowhere else.

    Inside a sequence it would be the placeholder of an id that the host does not know yet, and would read as the start:
    every hash that reaches over it would find a row, but a wrong one.
    """
    history = step.history
    depth = history.shape[1]
    start = step.k_len - step.q_len
    wrong = (history < 0) != (start[:, np.newaxis] < np.arange(depth, 0, -1))
    if wrong.any():
        row = int(wrong.any(axis=1).argmax())
        ids = ", ".join(map(str, history[row]))
        raise ValueError(
            f"row {row} starts at position {start[row]}, but the {depth} ids before it are {ids}: -1 stands before the"
            " sequence start only; ids that the device has yet to sample are gathered there"
        )


def _batch_arrays(step: StepArrays) -> list[NDArray[Any]]:
    """The arrays of a step in the order of ``ForwardBatch``."""
    input_ids, q_len = step.input_ids, step.q_len
    starts = list(accumulate(q_len.tolist(), initial=0))
    tokens = starts.pop()
    if tokens != len(input_ids):
        raise ValueError(f"the rows hold {tokens} tokens, the step {len(input_ids)}")
    return [
        input_ids,
        step.positions,
        step.row_of_token,
        np.array(starts),
        q_len,
        step.k_len,
        step.prefill_len,
        step.slot,
        step.block_table,
        step.history,
    ]
