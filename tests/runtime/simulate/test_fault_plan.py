"""Every event of a fault plan does what it says, at the edge of the step that it names."""

from __future__ import annotations

from typing import Any

from simulated import request
from tiny_spec import TINY

from .conftest import Simulated


def ends(trace: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Request to how it ended, and the step whose line says so."""
    return {name: (reason, line["step"]) for line in trace for name, reason in line["finished"].items()}


def rows_of(trace: list[dict[str, Any]], name: str) -> list[int]:
    return [line["step"] for line in trace if any(row["id"] == name for row in line["seqs"])]


def test_finish_and_abort_end_a_request_at_their_step(simulated: Simulated) -> None:
    events = [
        {"step": 5, "event": "finish", "id": "a", "reason": "stop"},
        {"step": 7, "event": "abort", "id": "b", "phase": "end"},
    ]
    _, trace = simulated(TINY, [request("a", 9, 90), request("b", 9, 90)], events)
    # What ends behind a step's commit is told with the next step, or with the last one.
    assert ends(trace) == {"a": ("stop", 5), "b": ("abort", 7)}
    assert rows_of(trace, "a") == [0, 1, 2, 3, 4]


def test_an_end_token_inside_drafts_ends_the_output(simulated: Simulated) -> None:
    events = [{"event": "end_token", "id": "a", "output": 4}]
    _, trace = simulated("recompute", [request("a", 9, 90, accept_rate=1)], events)
    assert ends(trace)["a"][0] == "stop"
    assert sum(line["accepted"].get("a", 0) for line in trace) == 2, "1 + (2 + 1): the first from the prefill step"


def test_a_paused_request_waits_until_it_is_resumed(simulated: Simulated) -> None:
    events = [{"step": 3, "event": "pause", "id": "a"}, {"step": 9, "event": "resume", "id": "a"}]
    outcome, trace = simulated(TINY, [request("a", 9, 9)], events)
    assert rows_of(trace, "a") == [0, 1, 2, *range(9, 15)]
    assert outcome.end.how == "done"


def test_a_request_that_is_never_resumed_waits_for_ever(simulated: Simulated) -> None:
    outcome, _ = simulated(TINY, [request("a", 9, 9)], [{"step": 3, "event": "pause", "id": "a"}])
    assert outcome.end.how == "waits"
    assert outcome.summary[1].endswith("1: 1 unfinished")


def test_a_held_transfer_keeps_the_blocks_of_an_ended_request(simulated: Simulated) -> None:
    events = [
        {"step": 2, "event": "begin_transfer", "id": "a"},
        {"step": 3, "event": "abort", "id": "a"},
        {"step": 6, "event": "end_transfer", "id": "a"},
    ]
    _, trace = simulated(TINY, [request("a", 40, 9), request("b", 9, 9)], events)
    free = [line["free_blocks"] for line in trace]
    assert free[3] == free[2]
    assert free[6] == free[2] + 2


def test_an_error_of_one_rank_ends_the_run_on_all(simulated: Simulated) -> None:
    events = [{"step": 4, "event": "error", "rank": 1, "phase": "scheduled", "message": "lost results"}]
    outcome, _ = simulated(TINY, [request("a", 9, 50), request("b", 9, 50, rank=1)], events, ranks=2)
    assert (outcome.end.how, outcome.end.steps, outcome.end.message) == ("failed", 5, "lost results")


def test_late_results_are_delivered_after_the_next_step_is_scheduled(simulated: Simulated) -> None:
    lines = [request("a", 9, 5)]
    _, usual = simulated(TINY, lines)
    _, late = simulated(TINY, lines, [{"step": s, "event": "late", "phase": "scheduled"} for s in range(9)])
    assert [line["kind"] for line in late] == [line["kind"] for line in usual] + ["dummy_decode"]
    assert ends(late)["a"][0] == "length"


def test_early_results_are_delivered_before_the_next_step(simulated: Simulated) -> None:
    lines = [request("a", 9, 9, accept_rate=0)]
    outcome, _ = simulated("recompute", lines, [{"step": s, "event": "early", "phase": "end"} for s in range(9)])
    assert outcome.statistics.kinds["dummy_decode"] == 0


def test_pending_keeps_an_idle_group_from_being_done(simulated: Simulated) -> None:
    events = [{"step": 0, "event": "pending"}, {"step": 30, "event": "settled"}]
    outcome, trace = simulated(TINY, [request("a", 9, 9)], events)
    assert outcome.end.steps == 30
    assert trace[-1]["kind"] == "idle"


def test_a_refused_call_is_counted_and_changes_nothing(simulated: Simulated) -> None:
    events = [{"step": 2, "event": "end_transfer", "id": "a"}, {"step": 50, "event": "pause", "id": "a"}]
    outcome, _ = simulated(TINY, [request("a", 9, 9), request("b", 9, 1, arrival_step=60)], events)
    assert outcome.summary[-1] == "  2 calls of the fault plan were refused, as the state demands"


def test_a_slow_load_delays_its_request_only(simulated: Simulated) -> None:
    events = [{"event": "hold_load", "id": "a"}, {"step": 20, "event": "end_transfer", "id": "a"}]
    _, trace = simulated("completion", [request("a", 40, 5), request("b", 40, 5)], events)
    assert min(rows_of(trace, "a")) >= 20
    assert max(rows_of(trace, "b")) < 20


def test_forks_share_their_parents_prompt_and_have_outputs_of_their_own(simulated: Simulated) -> None:
    lines = [request("a", 40, 9, accept_rate=0)]
    lines += [
        request(name, 40, 9, accept_rate=0, fork_of="a", arrival_step=step) for name, step in (("b", 0), ("c", 4))
    ]
    outcome, trace = simulated("recompute", lines)
    assert [line["kind"] for line in trace].count("prefill") == 1
    # b has no token from the prefill step; c branches off what a had by then, which was committed for it.
    assert rows_of(trace, "b")[0] == rows_of(trace, "a")[1]
    assert rows_of(trace, "c")[0] == 4
    first = {
        row["id"]: row["k"] - row["q"]
        for line in reversed(trace)
        for row in line["seqs"]
        if row["new"] and line["step"]
    }
    assert first == {"a": 40, "b": 39, "c": 43}
    assert outcome.summary[1].endswith("3: 3 length")


def test_a_fork_whose_parent_has_ended_fails_and_says_so(simulated: Simulated) -> None:
    lines = [request("a", 40, 2), request("b", 40, 2, fork_of="a", arrival_step=9), request("c", 9, 20)]
    outcome, trace = simulated(TINY, lines)
    assert ends(trace)["b"][0] == "error"
    assert outcome.summary[-1] == "  1 forks failed: their parent had ended"
