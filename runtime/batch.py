"""What one forward pass runs on: the tokens of a step, the rows they belong to, and where each row's cache lies."""

from __future__ import annotations

from dataclasses import dataclass
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
    after this step), ``slot`` [R]; ``block_table`` [R, blocks per sequence]; ``history`` [R, 3]: the ids before the
    row's first query, oldest first, -1 before the sequence starts. Padding rows name block 0 and slot 0 only.
    """

    input_ids: Tensor
    positions: Tensor
    row_of_token: Tensor
    q_start: Tensor
    q_len: Tensor
    k_len: Tensor
    slot: Tensor
    block_table: Tensor
    history: Tensor

    @classmethod
    def from_step(cls, step: StepArrays, device: torch.device) -> ForwardBatch:
        """Copy a step's borrowed arrays once; the result stays valid after the scheduler's next step.

        Raises ``ValueError`` when the rows do not cover the tokens.
        """
        q_len = np.array(step.q_len, dtype=np.int64)
        ends = np.cumsum(q_len)
        tokens = len(step.input_ids)
        if int(ends[-1]) != tokens:
            raise ValueError(f"the rows hold {int(ends[-1])} tokens, the step {tokens}")

        def copied(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.array(array, dtype=np.int64)).to(device)

        return cls(
            input_ids=copied(step.input_ids),
            positions=copied(step.positions),
            row_of_token=copied(step.row_of_token),
            q_start=torch.from_numpy(ends - q_len).to(device),
            q_len=torch.from_numpy(q_len).to(device),
            k_len=copied(step.k_len),
            slot=copied(step.slot),
            block_table=copied(step.block_table),
            history=copied(step.history),
        )
