"""What a device's memory holds while a scheduler is tested: tags instead of keys and states.

The fake model's token at position p of a request is a hash of both, so the expected output of every request is known
beforehand. A tag names a whole prefix of tokens: a read of something that was never written, that was freed, that
belongs to another request or to another branch shows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

STOP, LENGTH, ABORT, PREEMPTED, ERROR = range(1, 6)
VOCABULARY = 97
WINDOW = 7
REJECTED = -1


def token_at(request: int, position: int) -> int:
    return (request * 7919 + position * 104729 + (request ^ position) * 31) % VOCABULARY


@dataclass
class Expected:
    """A request as its caller sees it. ``given`` is the output that it began with, as a branch or from elsewhere."""

    request: int
    prompt: list[int]
    max_tokens: int
    min_tokens: int
    end_ids: list[int]
    given: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    reason: int = 0
    ended_by_caller: bool = False
    _prefixes: list[int] = field(default_factory=lambda: [0])

    def token(self, position: int) -> int:
        """The token at ``position`` of the prompt or of the output of an unlimited engine."""
        if position < len(self.prompt):
            return self.prompt[position]
        if position < len(self.prompt) + len(self.given):
            return self.given[position - len(self.prompt)]
        return token_at(self.request, position)

    def prefix(self, length: int) -> int:
        """The tag of the first ``length`` tokens."""
        while len(self._prefixes) <= length:
            self._prefixes.append(hash((self._prefixes[-1], self.token(len(self._prefixes) - 1))))
        return self._prefixes[length]

    @property
    def length(self) -> int:
        """Tokens that the host knows."""
        return len(self.prompt) + len(self.output)

    def full_output(self, max_model_len: int, decodes: bool = True) -> tuple[list[int], int]:
        """What an engine without any limits of memory would produce."""
        output = list(self.given)
        most = self.max_tokens if decodes else 1
        while True:
            output.append(self.token(len(self.prompt) + len(output)))
            if len(output) >= self.min_tokens and output[-1] in self.end_ids:
                return output, STOP
            if len(output) == most or len(self.prompt) + len(output) == max_model_len:
                return output, LENGTH


class Device:
    """Blocks of tags by position, and slots that are rings of tags: the window and what may have to be rewritten."""

    def __init__(self, block_size: int, nextn: int) -> None:
        self.block_size, self.ring = block_size, WINDOW + max(nextn, 1)
        self.blocks: dict[tuple[int, int], int] = {}
        self.slots: dict[int, dict[int, int]] = {}

    def prepare(self, step: Any) -> None:
        """Copies, then zeroed states, before the forward pass. The copies run side by side."""
        for copies in (step.clone_blocks, step.clone_states):
            destinations = copies[:, 1].tolist()
            assert len(set(destinations)) == len(destinations)
            assert not set(destinations) & set(copies[:, 0].tolist()), "B9: the source of a copy was handed out"
        assert not set(step.zero_states.tolist()) & set(step.clone_states.ravel().tolist())
        for source, copy in step.clone_blocks.tolist():
            for offset in range(self.block_size):
                if (source, offset) in self.blocks:
                    self.blocks[copy, offset] = self.blocks[source, offset]
        for source, copy in step.clone_states.tolist():
            self.slots[copy] = dict(self.slots[source])
        for slot in step.zero_states.tolist():
            self.slots[slot] = {}

    def read(self, request: Expected, table: Sequence[int], slot: int, start: int) -> None:
        """Attention and the states read everything before position ``start``."""
        for position in range(start):
            found = self.blocks.get((table[position // self.block_size], position % self.block_size))
            assert found == request.prefix(position + 1), f"I11: block of {request.request} at {position}: {found}"
        ring = self.slots[slot]
        for position in range(max(0, start - WINDOW), start):
            found = ring.get(position % self.ring)
            assert found == request.prefix(position + 1), f"I16: ring of {request.request} at {position}: {found}"

    def write(
        self, request: Expected, table: Sequence[int], slot: int, positions: Iterable[int], accepted: int
    ) -> None:
        """Keys and states of ``positions``; those from the absolute position ``accepted`` on are of rejected drafts."""
        ring = self.slots[slot]
        for position in positions:
            tag = request.prefix(position + 1) if position < accepted else REJECTED
            self.blocks[table[position // self.block_size], position % self.block_size] = tag
            ring[position % self.ring] = tag

    def content(self, blocks: Sequence[int], length: int) -> list[int | None]:
        """What a reader outside finds at positions 0 .. length − 1."""
        return [self.blocks.get((blocks[p // self.block_size], p % self.block_size)) for p in range(length)]
