"""The modelled device's memory: a tag for every row of every KV block and of every state slot's ring.

A row that was never written, that was handed to another request or that holds a rejected draft does not have the tag
that its reader expects, so it shows at the first read.
"""

from __future__ import annotations

import numpy as np

from deepinfer_gen.runtime.scheduler_core import Int32
from deepinfer_gen.runtime.simulate.mixing import Int64, UInt64
from deepinfer_gen.runtime.simulate.requests import Requests
from deepinfer_gen.runtime.simulate.violation import violated

READS_PER_STEP = 1 << 9
"""Rows of blocks, and rows of rings, compared in one step at most; the next step goes on behind them."""


class DeviceMemory:
    """Blocks and slots of one rank."""

    def __init__(self, requests: Requests, *, blocks: int, block_size: int, slots: int, ring: int, window: int) -> None:
        self._requests = requests
        self._block_size = block_size
        self._ring_rows = ring
        self._window = window
        self.blocks = np.zeros((blocks, block_size), np.uint64)
        self.rings = np.zeros((slots, ring), np.uint64)
        self._block_cursor = 0
        self._ring_cursor = 0

    def copy(self, clone_blocks: Int32, clone_states: Int32, zero_states: Int32) -> None:
        """What precedes the forward pass, in its order: copies, then clearings."""
        for pairs, memory in ((clone_blocks, self.blocks), (clone_states, self.rings)):
            if len(pairs):
                memory[pairs[:, 1]] = memory[pairs[:, 0]]
        if len(zero_states):
            self.rings[zero_states] = 0

    def write(self, table: Int32, slots: Int32, rows: Int64, positions: Int64, tags: UInt64, ends: Int64) -> None:
        """Write the tags of tokens: their ``rows`` in the step, and ``ends``, one past each row's last position."""
        blocks = table[rows, positions // self._block_size]
        if not blocks.all():
            token = int(np.flatnonzero(blocks == 0)[0])
            violated("I13", f"row {rows[token]} writes position {positions[token]}, which has no block")
        self.blocks[blocks, positions % self._block_size] = tags
        kept = positions >= ends[rows] - self._ring_rows
        rows, positions = rows[kept], positions[kept]
        self.rings[slots[rows], positions % self._ring_rows] = tags[kept]

    def read(self, numbers: Int64, table: Int32, slots: Int32, starts: Int64) -> None:
        """Compare what rows read, all positions below ``starts`` and the ring's window of them, with what is right."""
        lengths = np.minimum(starts, self._window - 1)
        block_rows, block_positions, self._block_cursor = _portion(starts, self._block_cursor)
        ring_rows, offsets, self._ring_cursor = _portion(lengths, self._ring_cursor)
        ring_positions = (starts - lengths)[ring_rows] + offsets
        count = len(block_rows)
        rows = np.concatenate((block_rows, ring_rows))
        positions = np.concatenate((block_positions, ring_positions))
        found = np.empty(len(rows), np.uint64)
        size = self._block_size
        found[:count] = self.blocks[table[block_rows, block_positions // size], block_positions % size]
        found[count:] = self.rings[slots[ring_rows], ring_positions % self._ring_rows]
        of = numbers[rows]
        expected = self._requests.tags(of, positions)
        if not np.array_equal(found, expected):
            first = int(np.argmax(found != expected))
            prop, what = ("I11", "block") if first < count else ("I16", "ring")
            held = f"tag {found[first]:016x} in place of {expected[first]:016x}" if found[first] else "nothing"
            name = self._requests.names[int(of[first])]
            violated(prop, f"its {what} row of position {positions[first]} holds {held}", name)

    def fill(self, number: int, table: Int32, slot: int, end: int) -> None:
        """A transfer from outside writes the cache of a request's first ``end`` positions."""
        positions = np.arange(end, dtype=np.int64)
        tags = self._requests.tags(np.full(end, number, np.int64), positions)
        rows = np.zeros(end, np.int64)
        self.write(table[None], np.array([slot], np.int32), rows, positions, tags, np.array([end], np.int64))


def _portion(lengths: Int64, cursor: int) -> tuple[Int64, Int64, int]:
    """At most ``READS_PER_STEP`` of the (row, offset) pairs that ``lengths`` stand for, and the cursor after them."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total <= READS_PER_STEP:
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return rows, np.arange(total) - (ends - lengths)[rows], 0
    index = (np.arange(READS_PER_STEP) + cursor) % total
    rows = np.searchsorted(ends, index, side="right")
    return rows, index - (ends - lengths)[rows], (cursor + READS_PER_STEP) % total
