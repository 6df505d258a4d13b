"""The graph table of a generated engine: which padded size a decode step runs at, and what may run in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class GraphError(RuntimeError):
    """A step was to be replayed in a graph outside that graph's rows, tokens or longest row."""


@dataclass(frozen=True, slots=True)
class GraphTable:
    """Content of ``graphs.json``: row capacity by size, the size for each total of real tokens, the longest row."""

    rows_of_size: Mapping[int, int]
    size_of_total: Sequence[int]
    max_q: int

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> GraphTable:
        """Read the content of ``graphs.json``."""
        graphs = content["graphs"]
        sizes = [graph["size"] for graph in graphs]
        return cls(
            {graph["size"]: graph["rows"] for graph in graphs},
            tuple(sizes[index] for index in content["lookup"]),
            content["max_q"],
        )

    def check(self, size: int, *, total_q: int, tokens: int, rows: int, longest_row: int) -> None:
        """Raise ``GraphError`` unless a padded step fits the graph it names.

        ``total_q`` counts real tokens; ``tokens``, ``rows`` and ``longest_row`` include the padding.
        """
        if not 0 <= total_q < len(self.size_of_total):
            raise GraphError(
                f"a decode step of {total_q} tokens has no graph: they end at {len(self.size_of_total) - 1}"
            )
        expected = self.size_of_total[total_q]
        if size != expected:
            raise GraphError(f"a decode step of {total_q} tokens belongs into graph {expected}, not {size}")
        capacity = self.rows_of_size[size]
        if (tokens, rows) != (size, capacity) or longest_row > self.max_q:
            raise GraphError(
                f"graph {size} holds {size} tokens in {capacity} rows of at most {self.max_q}; "
                f"the step has {tokens} tokens in {rows} rows of at most {longest_row}"
            )
