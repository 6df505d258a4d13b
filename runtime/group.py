"""Exchange between the ranks of a group: every record is reduced by MAX. One rank is its own group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from deepinfer_gen.runtime.scheduler_core import Int32


class Reduction(Protocol):
    """A reduction in flight."""

    def wait(self) -> Int32:
        """The reduced record."""


class Reducer(Protocol):
    """Starts reductions; all ranks start the same ones in the same order."""

    def start(self, record: Callable[[], Int32]) -> Reduction:
        """Begin to reduce this rank's ``record`` by MAX over the group; nobody waits until the result is asked for."""


class _Own:
    def __init__(self, record: Callable[[], Int32]) -> None:
        self._record = record

    def wait(self) -> Int32:
        """The record itself."""
        return self._record()


class LocalReducer:
    """The group of one rank.

    Nothing has to travel, so the record is taken when it is asked for: it then knows what the last step's results
    ended, which spares a step without work before an idle engine prefills again.
    """

    def start(self, record: Callable[[], Int32]) -> Reduction:
        """The maximum over one rank is that rank's record."""
        return _Own(record)
