"""The trace: what a line says, in which order lines come, and that they are one story."""

from __future__ import annotations

from typing import Any

from simulated import request
from tiny_spec import TINY

from .conftest import Simulated

LINES = [
    request("a", 100, 50, accept_rate=0.8),
    request("b", 40, 30, rank=1, arrival_step=3, accept_rate=0.5),
    request("c", 30, 60, rank=1, arrival_step=4, abort_step=9),
]
KEYS = [
    "step", "rank", "kind", "point", "want", "go", "scheduled", "decode_counter", "seqs", "total_q", "graph",
    "free_blocks", "free_slots", "accepted", "finished", "preempted", "fingerprint",
]  # fmt: skip


def test_the_first_lines_by_hand(simulated: Simulated) -> None:
    """The tiny engine drafts nothing and commits at once, so the first three steps follow from the rules alone."""
    _, trace = simulated(TINY, [request("a", 33, 2)])
    for line in trace:
        assert len(line.pop("fingerprint")) == 16
    common = {"rank": 0, "accepted": {}, "finished": {}, "preempted": []}
    no_vote = {"point": None, "want": None, "go": None, "scheduled": None}
    blocks = 16 * 33  # without block 0: sixteen sequences of 1,024 tokens and the room for one step
    assert trace == [
        {
            **common, "step": 0, "kind": "prefill", "point": "ANY", "want": 1, "go": 1, "scheduled": 1,
            "decode_counter": 0, "seqs": [{"id": "a", "q": 33, "k": 33, "new": True}], "total_q": 33, "graph": None,
            "free_blocks": trace[0]["free_blocks"], "free_slots": trace[0]["free_slots"],
        },
        {
            **common, **no_vote, "step": 1, "kind": "decode", "decode_counter": 0,
            "seqs": [{"id": "a", "q": 1, "k": 34, "new": True}], "total_q": 1, "graph": 1, "accepted": {"a": 0},
            "finished": {"a": "length"},
            "free_blocks": trace[0]["free_blocks"] + 2, "free_slots": trace[0]["free_slots"] + 1,
        },
    ]  # fmt: skip
    assert trace[1]["free_blocks"] <= blocks


def test_lines_come_by_step_and_rank_with_the_documented_keys(simulated: Simulated) -> None:
    outcome, trace = simulated("recompute", LINES, ranks=2)
    assert [(line["step"], line["rank"]) for line in trace] == [
        (s, r) for s in range(outcome.end.steps) for r in (0, 1)
    ]
    assert all(list(line) == KEYS for line in trace)


def test_i14_the_trace_tells_how_every_sequence_grows(simulated: Simulated) -> None:
    """A row starts at the newest token: what the last row had accepted and the bonus are behind it."""
    _, trace = simulated("recompute", LINES, ranks=2)
    lengths: dict[str, int] = {}
    for line in trace:
        for row in line["seqs"]:
            assert row["q"] >= 1
            if row["id"] in line["accepted"]:  # the others have ended meanwhile
                assert row["k"] - row["q"] == lengths[row["id"]] - 1
            if line["kind"] == "prefill":
                lengths[row["id"]] = row["k"] + 1
            elif row["id"] in line["accepted"]:
                assert 0 <= line["accepted"][row["id"]] < row["q"]
                lengths[row["id"]] += line["accepted"][row["id"]] + 1
        assert sum(row["q"] for row in line["seqs"]) == line["total_q"]
        assert (line["graph"] is None) == (line["kind"] not in ("decode", "dummy_decode"))
    ended = {name: reason for line in trace for name, reason in line["finished"].items()}
    assert ended == {"a": "length", "b": "length", "c": "abort"}
    assert lengths["a"] == 150


def test_i2_i7_steps_and_counters_are_equal_on_all_ranks(simulated: Simulated) -> None:
    _, trace = simulated("recompute", LINES, ranks=2)
    for first, second in zip(trace[::2], trace[1::2], strict=True):
        assert shared(first) == shared(second)


def shared(line: dict[str, Any]) -> tuple[Any, ...]:
    kind = line["kind"].removeprefix("empty_").removeprefix("dummy_")
    return line["step"], kind, line["point"], line["go"], line["decode_counter"]


def test_the_same_seed_gives_the_same_trace_and_another_one_does_not(simulated: Simulated) -> None:
    first, second, other = (simulated("recompute", LINES, ranks=2, seed=seed)[1] for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_reaching_the_step_limit_delivers_what_is_outstanding(simulated: Simulated) -> None:
    outcome, trace = simulated("recompute", LINES, ranks=2, steps=7)
    assert (outcome.end.how, outcome.end.steps, len(trace)) == ("steps", 7, 14)


def test_results_are_a_step_late_where_the_plan_says_so(simulated: Simulated) -> None:
    """With outstanding results the next step's K lengths are corrected on the device, so they never run ahead."""
    outcome, trace = simulated("recompute", [request("a", 10, 9, accept_rate=0)])
    rows = [row for line in trace for row in line["seqs"] if line["kind"] == "decode"]
    assert [row["k"] - row["q"] for row in rows] == list(range(10, 18))
    assert outcome.statistics.kinds["dummy_decode"] == 1, "the last result is known after the next step is scheduled"
