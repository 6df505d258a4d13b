"""Exchange between the ranks of a group: every record is reduced by MAX. One rank is its own group."""

from __future__ import annotations

from typing import Protocol

from deepinfer_gen.runtime.scheduler_core import Int32


class Reduction(Protocol):
    """A reduction in flight."""

    def wait(self) -> Int32:
        """The reduced record."""


class Reducer(Protocol):
    """Starts reductions; all ranks start the same ones in the same order."""

    def start(self, record: Int32) -> Reduction:
        """Begin to reduce ``record`` by MAX over the group; nobody waits until the result is asked for."""


class _Own:
    def __init__(self, record: Int32) -> None:
        self._record = record

    def wait(self) -> Int32:
        """The record itself."""
        return self._record


class LocalReducer:
    """The group of one rank."""

    def start(self, record: Int32) -> Reduction:
        """The maximum over one rank is that rank's record, copied because the core reuses its memory."""
        return _Own(record.copy())
