"""A rule that a step broke: the simulation ends with it, and everything that is needed to see it again."""

from __future__ import annotations

from typing import NoReturn


class ViolationError(Exception):
    """The property (``I14``), where it broke, and the values that contradict it.

    ``step`` and ``rank`` are -1 where the whole run or the whole group is meant; ``request`` is empty where no single
    one is.
    """

    def __init__(self, prop: str, text: str, *, step: int = -1, rank: int = -1, request: str = "") -> None:
        super().__init__(text)
        self.prop = prop
        self.text = text
        self.step = step
        self.rank = rank
        self.request = request

    def at(self, step: int, rank: int) -> ViolationError:
        """The same fault with the place that its finder did not know."""
        self.step = step if self.step < 0 else self.step
        self.rank = rank if self.rank < 0 else self.rank
        return self

    def sentence(self, seed: int) -> str:
        """One sentence: property, place, values, seed."""
        places = [f"step {self.step}"] * (self.step >= 0) + [f"rank {self.rank}"] * (self.rank >= 0)
        places += [f"request '{self.request}'"] * bool(self.request) + [f"seed {seed}"]
        return f"{self.prop} does not hold ({', '.join(places)}): {self.text}"


def violated(prop: str, text: str, request: str = "", rank: int = -1) -> NoReturn:
    """Raise a ``ViolationError``."""
    raise ViolationError(prop, text, request=request, rank=rank)
