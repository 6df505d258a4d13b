"""Workloads and fault plans that are wrong: every fault of a file, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.simulate.fault_plan import read_fault_plan
from deepinfer_gen.runtime.simulate.workload import read_workload

GOOD = '{"id": "a", "prompt_len": 10, "max_tokens": 5, "image_spans": [[2, 4]]}'


def faults_of(path: Path, workload: str, plan: str = "") -> list[str]:
    """What is said of a workload, or of a plan for it, in a group of two ranks; without excerpts."""
    (path / "w.jsonl").write_text(workload)
    (path / "p.jsonl").write_text(plan)
    with pytest.raises(InputError) as caught:
        read_fault_plan(path / "p.jsonl", read_workload(path / "w.jsonl", 2)[0], 2)
    return [
        f"{d.place.removeprefix(str(path) + '/')}: {d.code}: {d.message}; {d.help}" for d in caught.value.diagnostics
    ]


FIELDS = "id, prompt_len, max_tokens"
OTHERS = "rank, arrival_step, accept_rate, abort_step, fork_of, image_spans, checkpoints"
LINES = [
    ("[1]", f"1: DI381: this line is no JSON object: it is [1]; a line has {FIELDS}, and may have {OTHERS}"),
    (
        '{"id": "a",}',
        "1: DI381: this line is no JSON object: Expecting property name enclosed in double quotes at column 12;"
        f" a line has {FIELDS}, and may have {OTHERS}",
    ),
    (
        '{"id": "a", "id": "b"}',
        f"1: DI381: this line is no JSON object: 'id' is written twice; a line has {FIELDS}, and may have {OTHERS}",
    ),
    (
        '{"id": NaN}',
        f"1: DI381: this line is no JSON object: NaN is not a JSON number; a line has {FIELDS}, and may have {OTHERS}",
    ),
    (
        GOOD.replace("image_spans", "image_span"),
        "1:48: DI382: unknown field 'image_span'; did you mean 'image_spans'?",
    ),
    (
        '{"id": "a", "max_tokens": 3}',
        f"1: DI383: the line has no 'prompt_len'; a line has {FIELDS}, and may have {OTHERS}",
    ),
    (GOOD.replace("10", "0"), "1:13: DI384: prompt_len is 0, not a number of tokens, from 1; "),
    (GOOD.replace("10", "true"), "1:13: DI384: prompt_len is true, not a number of tokens, from 1; "),
    (GOOD.replace('"a"', '""'), '1:2: DI384: id is "", not a name; '),
    (GOOD.replace('"a"', '"\\ud800"'), '1:2: DI384: id is "\\ud800", not a name; '),
    (GOOD.replace("[2, 4]", "[2]"), "1:48: DI384: image_spans is [[2]], not a list of [start, end]; "),
    (
        GOOD.replace("}", ', "accept_rate": 1.5}'),
        "1:73: DI384: accept_rate is 1.5, not a probability from 0 to 1; ",
    ),
    (" \n", ": DI385: the workload holds no request; write one a line"),
    (f"{GOOD}\n\n{GOOD}", "3:2: DI385: the id 'a' is that of line 1 too; give every request a name of its own"),
    (
        GOOD.replace("}", ', "rank": 2}'),
        "1:73: DI386: there is no rank 2 in a group of 2; ranks count from 0 to 1; --ranks sets their number",
    ),
    (
        GOOD.replace("}", ', "fork_of": "a"}'),
        "1:73: DI387: fork_of is 'a', which is itself; name another line's id",
    ),
    (
        GOOD.replace("}", ', "fork_of": "z"}'),
        "1:73: DI387: fork_of is 'z', which is no request of this file; name another line's id",
    ),
    (
        f"{GOOD}\n" + GOOD.replace('"a"', '"b"').replace("}", ', "fork_of": "a"}').replace("5", "6"),
        "2:31: DI387: max_tokens is 6, and 5 in 'a' (line 1); a fork has its parent's prompt, limits and rank",
    ),
    (
        "\n".join(GOOD.replace('"a"', f'"{n}"').replace("}", f', "fork_of": "{p}"}}') for n, p in ("ab", "ba")),
        "1:73: DI387: fork_of is 'b', a fork that stands below (line 2); a fork of a fork stands below it",
    ),
    (
        GOOD.replace("}", ', "arrival_step": 4, "abort_step": 3}'),
        "1:92: DI388: abort_step 3 is before arrival_step 4; a request is aborted at its arrival or later",
    ),
]


@pytest.mark.parametrize(("lines", "fault"), LINES)
def test_a_wrong_workload_line_is_named(lines: str, fault: str, tmp_path: Path) -> None:
    assert faults_of(tmp_path, lines) == [f"w.jsonl{fault}" if fault[0] == ":" else f"w.jsonl:{fault}"]


def test_all_faults_of_a_file_come_in_one_run(tmp_path: Path) -> None:
    places = [fault.split(": ")[0] for fault in faults_of(tmp_path, '{"id": 1, "prompt": 2}\n[]\n' + GOOD)]
    assert places == ["w.jsonl:1:2", "w.jsonl:1:11", "w.jsonl:1", "w.jsonl:2"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"DI380.*No such file or directory"):
        read_workload(tmp_path / "none", 1)
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InputError, match=r"DI380.*it is not UTF-8 at byte 0"):
        read_workload(tmp_path / "latin", 1)


EVENTS = [
    (
        '{"event": "error", "message": "\\udfff"}',
        '1:20: DI384: message is "\\udfff", not a sentence; ',
    ),
    ('{"event": "abort"}', "1:2: DI390: 'abort' happens to a request, and the line has no id; write its id"),
    ('{"event": "late", "id": "a"}', "1:19: DI390: 'late' happens to a rank, not to request 'a'; write its rank"),
    ('{"event": "abort", "id": "z"}', "1:20: DI390: the workload has no request 'z'; name one of its ids"),
    ('{"event": "abort", "id": "a", "rank": 0}', "1:31: DI390: 'rank' says nothing about 'abort'; leave it out"),
    ('{"event": "late", "reason": "stop"}', "1:19: DI390: 'reason' says nothing about 'late'; leave it out"),
    ('{"event": "late", "rank": 2}', "1:19: DI390: there is no rank 2 in a group of 2; ranks count from 0 to 1"),
    (
        '{"event": "end_token", "id": "b"}',
        "1:24: DI390: 'b' is a fork, which has its parent's end tokens; name the parent",
    ),
    (
        '{"event": "late", "phase": "now"}',
        '1:19: DI384: phase is "now", not one of begin, vote, attempt, scheduled, commit, end; ',
    ),
]


@pytest.mark.parametrize(("plan", "fault"), EVENTS)
def test_a_wrong_event_is_named(plan: str, fault: str, tmp_path: Path) -> None:
    workload = f"{GOOD}\n" + GOOD.replace('"a"', '"b"').replace("}", ', "fork_of": "a"}')
    assert faults_of(tmp_path, workload, plan) == [f"p.jsonl:{fault}"]
