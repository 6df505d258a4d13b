"""Sizes of the captured decode graphs and the lookup from a step's tokens to its graph."""

from __future__ import annotations

from bisect import bisect_left

from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.formula import ceil_div
from deepinfer_gen.specs.resolved import Resolved

_INTERVAL = "graphs.batch_size_interval"


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``graphs.{max_total_q,extra_rows,sizes,rows,lookup,count,max_rows}``; a PROMPT engine has no graphs."""
    decodes = r["engine.type"] != "PROMPT"
    padded = decodes and r["parallel.dispatch"] == "padded"
    inputs: dict[str, str] = {"engine_type": "engine.type"}
    if decodes:
        b.formula(
            "graphs.max_total_q",
            "max_num_seqs * max_q",
            unit="tokens",
            why="the largest decode step: every sequence verifies all its drafts",
            max_num_seqs="limits.max_num_seqs",
            max_q="speculative.max_q",
        )
        if not padded:
            b.formula(
                "graphs.extra_rows",
                "ceil_div(interval - 1, max_q)",
                unit="rows",
                why="padding tokens of a graph are grouped into rows of at most max_q",
                interval=_INTERVAL,
                max_q="speculative.max_q",
            )
        inputs |= {"interval": _INTERVAL, "max_total_q": "graphs.max_total_q"}
    else:
        b.formula("graphs.max_total_q", "0", unit="tokens", why="a prefill engine runs no decode step")
        b.formula("graphs.extra_rows", "0", unit="rows", why="a prefill engine captures no graphs")
    total, max_num_seqs = b.integer("graphs.max_total_q"), r["limits.max_num_seqs"]
    assert isinstance(max_num_seqs, int)
    sizes = graph_sizes(b.integer(_INTERVAL), total) if decodes else ()
    b.table(
        "graphs.sizes",
        sizes,
        unit="tokens",
        formula="powers of two below interval and max_total_q, then every interval; max_total_q last; [] for PROMPT",
        inputs=inputs,
        why="few graphs for small steps, even spacing above, and every possible step is covered",
    )
    if padded:
        _padded_rows(b, sizes, max_num_seqs)
    else:
        extra = b.integer("graphs.extra_rows")
        b.table(
            "graphs.rows",
            tuple(min(size, max_num_seqs) + extra for size in sizes),
            unit="rows",
            formula="for each size min(size, max_num_seqs) + extra_rows",
            inputs={"sizes": "graphs.sizes", "max_num_seqs": "limits.max_num_seqs", "extra_rows": "graphs.extra_rows"},
            why="row capacity of each graph: its real rows and the rows that hold padding tokens",
        )
    b.table(
        "graphs.lookup",
        tuple(bisect_left(sizes, tokens) for tokens in range(total + 1)) if sizes else (),
        formula="for each total_q from 0 to max_total_q the index of the smallest size that holds it",
        inputs={"sizes": "graphs.sizes", "max_total_q": "graphs.max_total_q"},
        why="choosing a graph is one table read",
    )
    b.formula("graphs.count", "count(sizes)", unit="graphs", why="graphs captured at start-up", sizes="graphs.sizes")
    b.formula(
        "graphs.max_rows",
        "max(rows) if count(rows) > 0 else 0",
        unit="rows",
        why="capacity of the row arrays of a decode step",
        rows="graphs.rows",
    )


def _padded_rows(b: PlanBuilder, sizes: tuple[int, ...], max_num_seqs: int) -> None:
    max_q = b.integer("speculative.max_q")
    b.table(
        "graphs.rows",
        tuple((rows := min(size, max_num_seqs)) + ceil_div(size - rows, max_q) for size in sizes),
        unit="rows",
        formula="for each size min(size, max_num_seqs) + ceil_div(size - min(size, max_num_seqs), max_q)",
        inputs={"sizes": "graphs.sizes", "max_num_seqs": "limits.max_num_seqs", "max_q": "speculative.max_q"},
        why="a rank runs the graph that its group agreed on, so any number of rows may meet any padding",
    )


def graph_sizes(interval: int, max_total_q: int) -> tuple[int, ...]:
    """Ascending sizes in tokens; the last one is ``max_total_q``."""
    sizes: list[int] = []
    size = 1
    while size < min(interval, max_total_q):
        sizes.append(size)
        size *= 2
    sizes += range(interval, max_total_q, interval)
    return (*sizes, max_total_q)
