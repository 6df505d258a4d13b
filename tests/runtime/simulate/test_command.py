"""``deepinfer-gen simulate``: what goes where, exit statuses, the offline run of the README."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulated import OVERLAPPED, SCARCE, build_spec, parsed, request, write_lines
from tiny_spec import TINY

from deepinfer_gen.codegen import cli
from deepinfer_gen.runtime.simulate import rank
from deepinfer_gen.runtime.simulate.run import simulate
from deepinfer_gen.runtime.simulate.violation import violated
from deepinfer_gen.runtime.simulate.workload import read_workload

from .conftest import EngineOf

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tiny(engine_of: EngineOf) -> str:
    return str(engine_of(TINY).folder)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return str(write_lines(tmp_path / "w.jsonl", [request("a", 33, 9), request("b", 9, 4, arrival_step=2)]))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["simulate", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_stdout_holds_the_table_alone(
    tiny: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    status, out, err = call(capsys, tiny, "--workload", workload, "--trace", str(trace))
    assert (status, err) == (0, "")
    assert out.splitlines()[:8] == [
        f"{TINY}: 1 rank, 13 steps, all done",
        "  requests               2: 2 length",
        "  steps of all ranks     2 prefill, 0 empty prefill, 11 decode, 0 dummy decode, 0 idle",
        "  verified tokens a row  mean 1.000",
        "  accepted drafts a row  mean 0.000",
        "  padding waste          0.00% of 11 graph tokens",
        "  votes                  2, of which 2 led to a prefill",
        "  preemptions            0",
    ]
    assert [json.loads(line)["step"] for line in trace.read_text().splitlines()] == list(range(13))


def test_the_step_limit_ends_a_run_well(tiny: str, workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, tiny, "--workload", workload, "--steps", "3")
    assert status == 0
    assert out.splitlines()[:2] == [
        f"{TINY}: 1 rank, 3 steps, as many as asked for",
        "  requests               2: 2 unfinished",
    ]


def test_what_the_engine_can_never_run_is_refused_with_its_lines(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [request("a", 1024, 5), request("b", 9, 5), request("c", 9, 5, image_spans=[[5, 20]])]
    path = write_lines(tmp_path / "w.jsonl", [*lines, request("d", 10**9, 5)])
    status, out, err = call(capsys, tiny, "--workload", str(path))
    assert (status, out) == (2, "")
    faults = [line for line in err.splitlines() if "error[" in line]
    assert [fault.removeprefix(str(path)) for fault in faults] == [
        ":1:13: error[DI389]: the engine refuses it: a prompt of 1024 tokens leaves no room for output within"
        " max_model_len 1024",
        ":3:13: error[DI389]: the engine refuses it: the image at 5 .. 20 is empty, out of order or outside the"
        " prompt of 9 tokens",
        ":4:13: error[DI389]: the engine refuses it: a prompt of 1000000000 tokens, and max_model_len is 1024",
    ]


def test_a_trace_is_untouched_when_an_input_is_wrong(
    tiny: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("of an earlier run")
    curve = str(tmp_path / "none.json")
    status, _, err = call(capsys, tiny, "--workload", workload, "--trace", str(trace), "--curve", curve)
    assert (status, err.splitlines()[0]) == (
        2,
        f"{curve}: error[DI370]: the cost curve cannot be read: No such file or directory",
    )
    assert trace.read_text() == "of an earlier run"


def test_a_trace_never_replaces_an_input(tiny: str, workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(workload).read_bytes()
    status, _, err = call(capsys, tiny, "--workload", workload, "--trace", workload)
    assert (status, err.splitlines()[0]) == (
        2,
        f"{workload}: error[DI393]: --trace would overwrite the input '{workload}'",
    )
    assert Path(workload).read_bytes() == before


def test_a_curve_for_an_engine_without_decode_steps_is_refused(
    engine_of: EngineOf, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = call(capsys, str(engine_of("prompt").folder), "--workload", workload, "--curve", "c.json")
    assert (status, err.splitlines()) == (
        2,
        [
            "c.json: error[DI394]: 'prompt' decodes nothing, so a cost curve says nothing about it",
            "help: leave --curve out",
        ],
    )


@pytest.mark.parametrize(
    ("option", "value", "most"),
    [
        ("--ranks", "0", 4096),
        ("--ranks", "4097", 4096),
        ("--ranks", "9" * 21, 4096),
        ("--steps", "9" * 5000, 10**9 - 1),
    ],
)
def test_numbers_out_of_range_are_refused(
    option: str, value: str, most: int, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(capsys, "tiny-cpu", "--workload", workload, option, value)
    assert (status, out) == (2, "")
    assert f"argument {option}: '{value}' is no number from 1 to {most}" in err


def test_engines_of_different_plans_are_no_group(
    engine_of: EngineOf, tmp_path: Path, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = engine_of("recompute")
    spec = SCARCE.format(name="recompute", type="NORMAL") + OVERLAPPED
    other = build_spec(spec + "  stop_preempted_request: false\n  prefill_attempt_interval: 71\n", tmp_path / "other")
    status, out, err = call(capsys, str(first.folder), str(other), "--workload", workload)
    assert (status, out) == (2, "")
    digests = first.extension.plan_digest, json.loads((other / "manifest.json").read_text())["plan_digest"]
    assert err == (
        f"{other}: error[DI392]: rank 0 runs 'recompute' (plan {digests[0][:12]}) and rank 1 'recompute' (plan"
        f" {digests[1][:12]}), which do not agree: schedule.prefill_attempt_interval is 70 and 71\n"
        "help: the ranks of a group run engines of one plan\n"
    )


def test_one_engine_per_rank_must_be_as_many_as_ranks(
    tiny: str, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = call(capsys, tiny, tiny, "--ranks", "3", "--workload", workload)
    assert (status, err.splitlines()[0]) == (2, "error[DI391]: 2 engines for 3 ranks")
    assert call(capsys, tiny, tiny, "--workload", workload)[0] == 0


def test_a_violated_rule_ends_with_status_4_and_one_sentence(
    tiny: str, workload: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(stats: object, constants: object) -> None:
        violated("I22", "17 sequences have a place, and max_num_seqs is 16")

    monkeypatch.setattr(rank, "check_places", broken)
    status, out, err = call(capsys, tiny, "--workload", workload, "--seed", "5")
    assert (status, out) == (4, "")
    assert err == (
        "error[I22]: I22 does not hold (step 0, rank 0, seed 5): 17 sequences have a place, and max_num_seqs is 16\n"
        "help: the same inputs with --seed 5 --steps 1 show it again; this is a bug\n"
    )


def test_a_normal_engine_keeps_near_max_num_seqs_running(engine_of: EngineOf) -> None:
    """16 prompts a prefill step, 128 places, lives of 80 decode steps."""
    engine = engine_of("normal")
    constants = engine.extension.constants()
    assert (constants["kMaxNumPrompts"], constants["kMaxNumSeqs"]) == (16, 128)
    lines, _ = read_workload(ROOT / "docs" / "offline-1000.jsonl", 1)
    outcome = simulate([engine], lines)
    assert outcome.statistics.kinds["decode"] == 8 * 80, "eight waves"
    assert outcome.statistics.mean_running >= 120
    assert outcome.statistics.mean_running_while_waiting >= 120


def test_a_workload_of_several_ranks_needs_as_many(tmp_path: Path) -> None:
    workload, _ = parsed(tmp_path, [request("a", 9, 9, rank=1)], ranks=2)
    assert workload[0].rank == 1
