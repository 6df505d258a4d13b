"""The graph table at replay: nothing runs outside what a graph was made for."""

from __future__ import annotations

import pytest

from deepinfer_gen.runtime.graphs import GraphError, GraphTable

TABLE = GraphTable.from_json(
    {
        "max_total_q": 4,
        "max_q": 2,
        "graphs": [{"size": 1, "rows": 2}, {"size": 4, "rows": 5}],
        "lookup": [0, 0, 1, 1, 1],
    }
)
GOOD = {"total_q": 3, "tokens": 4, "rows": 5, "longest_row": 2}


def test_a_step_that_fits_is_replayed() -> None:
    TABLE.check(4, **GOOD)
    TABLE.check(1, total_q=0, tokens=1, rows=2, longest_row=1)


@pytest.mark.parametrize(
    ("size", "change"),
    [
        (1, {}),
        (4, {"total_q": 1}),
        (4, {"total_q": 5}),
        (4, {"total_q": -1}),
        (2, {"total_q": 2}),
        (4, {"tokens": 3}),
        (4, {"rows": 6}),
        (4, {"longest_row": 3}),
    ],
)
def test_anything_else_is_an_error_with_the_numbers(size: int, change: dict[str, int]) -> None:
    with pytest.raises(GraphError, match=r"\d"):
        TABLE.check(size, **{**GOOD, **change})


def test_a_prompt_engine_has_no_graphs() -> None:
    table = GraphTable.from_json({"max_total_q": 0, "max_q": 1, "graphs": [], "lookup": []})
    with pytest.raises(GraphError, match="no graph"):
        table.check(1, total_q=1, tokens=1, rows=1, longest_row=1)
