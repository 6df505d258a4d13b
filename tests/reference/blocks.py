"""One pool of numbered things with reference counts: the cache blocks, or the state slots."""

from __future__ import annotations

from collections import deque


class Pool:
    """Numbers 1 .. count − 1; 0 is for padding and is never handed out.

    Ids are part of the rule, so that two schedulers can be compared by them: the free list is a queue. It starts in
    ascending order, ids are taken at its head and come back at its tail. Whoever gives up a sequence returns its blocks
    in table order, then its slot; whoever admits one takes the slot, then the blocks in table order.
    """

    def __init__(self, count: int) -> None:
        self.usable = count - 1
        self.free = deque(range(1, count))
        self.references = [0] * count
        self.pinned: list[int] = []  # in the order of the copies that read them

    def take(self) -> int:
        """The first free id, now with one reference."""
        taken = self.free.popleft()
        self.references[taken] = 1
        return taken

    def share(self, number: int) -> None:
        self.references[number] += 1

    def shared(self, number: int) -> bool:
        """Pins do not count: the last sequence that holds it may write to it, the device runs the copies first."""
        return self.references[number] > 1

    def release(self, number: int) -> None:
        self.references[number] -= 1
        if self.references[number] == 0 and number not in self.pinned:
            self.free.append(number)

    def would_free(self, number: int) -> bool:
        """Whether releasing one reference makes it available at once."""
        return self.references[number] == 1 and number not in self.pinned

    def copy_on_write(self, number: int) -> int:
        """A free id to copy ``number`` to. The source loses one reference and is pinned until the next step."""
        target = self.take()
        self.pinned.append(number)
        self.release(number)
        return target

    def unpin_all(self) -> None:
        """The copies of the last step were launched: what nobody holds any more is free, in order of the copies."""
        pinned, self.pinned = dict.fromkeys(self.pinned), []
        self.free.extend(number for number in pinned if self.references[number] == 0)
