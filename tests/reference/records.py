"""What the calls return: the field names of the extension module, as plain objects that own their arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

VOTE, PREFILL, DECODE, IDLE, DONE, FAIL = range(6)
STOP, LENGTH, ABORT, PREEMPTED, ERROR = range(1, 6)
POINT_NONE, POINT_ALL, POINT_ANY = range(3)


@dataclass(slots=True)
class Decision:
    """How the last action came about; −1 where there was no vote."""

    point: int = POINT_NONE
    want: int = -1
    go: int = -1
    scheduled: int = -1
    decode_counter: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A scheduled step; ``kind`` 0 after IDLE and DONE. Shapes as in docs/formats.md, section 3."""

    step_id: int
    kind: int
    num_rows: int
    total_q: int
    graph: int
    provisional: int
    ids: UInt64
    q_len: Int32
    k_len: Int32
    prefill_len: Int32
    slot: Int32
    remap: Int32
    samples: NDArray[Any]
    caps: Int32
    block_table: Int32
    history: Int32
    input_ids: Int32
    positions: Int32
    row_of_token: Int32
    clone_blocks: Int32
    clone_states: Int32
    zero_states: Int32
    ignored: UInt64
    preempted: UInt64
    loads: UInt64


@dataclass(frozen=True, slots=True)
class Committed:
    ids: UInt64
    emitted: Int32
    reasons: Int32


@dataclass(frozen=True, slots=True)
class Outcomes:
    ids: UInt64
    reasons: Int32
    stop_tokens: Int32
