"""``deepinfer-gen run``: what goes where, exit statuses, the trace."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_model import ScriptedModel, continuation, words

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime import assembly, cli_run
from deepinfer_gen.runtime.engine import LLMEngine
from deepinfer_gen.runtime.outputs import RequestOutput


@pytest.fixture
def run(tiny_engine: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command with the scripted model in the compiled engine."""

    def scripted_model(*arguments: Any) -> ScriptedModel:
        model = ScriptedModel()
        model.report = argparse.Namespace(loaded_bytes=0)  # type: ignore[attr-defined]
        return model

    monkeypatch.setattr(assembly, "load_model", scripted_model)

    def call(*arguments: str) -> int:
        parser = argparse.ArgumentParser()
        cli_run.add_arguments(parser)
        return cli_run.run(parser.parse_args([str(tiny_engine), *arguments]))

    return call


GREEDY = ("--temperature", "0", "--max-tokens", "4", "--ignore-eos")


def test_prompt_and_completion_are_printed_in_input_order(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("w4 w5\n\nw6\n")
    assert run("--prompt-ids", "5,7", "--prompt", "w3", "--file", str(file), *GREEDY) == 0
    expected = [("w1 w2", [5, 7]), ("w3", [0, 9]), ("w4 w5", [0, 11, 13]), ("w6", [0, 15])]
    assert capsys.readouterr().out.splitlines() == [f"{t} {words(continuation(i, 4))}" for t, i in expected]


def test_a_request_that_ends_at_once_is_printed_too(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends before the others have shown anything, and still has its line in input order."""
    stop = continuation([0, 5], 1)[0]
    arguments = ("--prompt", "w1", "--prompt", "w2", "--prompt", "w3", "--stop-token-ids", str(stop))
    assert run(*arguments, *GREEDY) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["w1", "w2", "w3"]


def test_json_is_one_line_per_request_and_nothing_else(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--prompt-ids", "5", "--prompt", "w2", "--logprobs", "1", *GREEDY) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["token_ids"] for line in lines] == [continuation([5], 4), continuation([0, 7], 4)]
    first = lines[0]
    assert first["prompt_token_ids"] == [5]
    assert first["text"] == " " + words(first["token_ids"])
    assert (first["finish_reason"], first["stop_reason"]) == ("length", None)
    assert first["metrics"]["num_generation_tokens"] == 4
    assert first["logprobs"][0][str(first["token_ids"][0])]["rank"] == 1


def test_sampling_flags_have_vllm_names(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--temperature",
        "1",
        "--top-p",
        "0.9",
        "--top-k",
        "5",
        "--min-p",
        "0.1",
        "--seed",
        "3",
        "--max-tokens",
        "3",
        "--min-tokens",
        "2",
    ]
    outputs = []
    for _ in range(2):
        assert run("--json", "--prompt-ids", "5", "--stop", "zz", "--stop-token-ids", "4", *flags) == 0
        outputs.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), "DI320", "no prompt"),
        (("--prompt", "a", "--temperature", "3"), "DI322", "--temperature"),
        (("--prompt", "a", "--stop", ""), "DI322", "--stop"),
        (("--prompt-ids", "999"), "DI322", "outside the vocabulary"),
        (("--file", "missing.txt"), "DI321", "missing.txt"),
        (("--prompt", "a", "--model", "missing"), "DI304", "missing"),
    ],
)
def test_bad_input(run: Any, arguments: tuple[str, ...], code: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        run(*arguments)
    assert caught.value.diagnostics[0].code == code
    assert text in str(caught.value)


def test_a_failed_request_gives_status_4(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LLMEngine.step
    calls: list[int] = []

    def aborting(self: LLMEngine) -> list[RequestOutput]:
        calls.append(1)
        return (self.abort_request([1]) if len(calls) == 3 else []) + step(self)

    monkeypatch.setattr(LLMEngine, "step", aborting)
    assert run("--prompt-ids", "5", "--prompt-ids", "6", *GREEDY) == 4
    captured = capsys.readouterr()
    assert "request 1 failed: abort" in captured.err
    assert captured.out.splitlines()[1].endswith(words(continuation([6], 4)))


def test_a_terminal_shows_text_as_it_comes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    class Terminal:
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            pieces.append(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run("--prompt-ids", "5", "--prompt-ids", "6", *GREEDY) == 0
    tokens = continuation([5], 4)
    assert [p for p in pieces if p][:4] == [
        f"w1 {words(tokens[:1])}",
        *(f" {words([t])}" for t in tokens[1:3]),
        f" {words(tokens[3:])}\n",
    ]
    assert "".join(pieces).splitlines()[1] == f"W1 {words(continuation([6], 4))}"


def test_trace(run: Any, tmp_path: Path, tiny_engine: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    assert run("--prompt-ids", "5,6,7", "--prompt-ids", "8", "--trace", str(trace), *GREEDY) == 0
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(e["kind"], e["rows"], e["total_q"]) for e in events] == [("prefill", 2, 4)] + [("decode", 2, 2)] * 3
    graphs = {g["size"]: g["rows"] for g in json.loads((tiny_engine / "graphs.json").read_text())["graphs"]}
    assert [(e["graph"], e["graph_rows"]) for e in events] == [(0, 0)] + [(2, graphs[2])] * 3
    layout = json.loads((tiny_engine / "layout.json").read_text())
    assert events[0]["regions"]["state"] == {r["name"]: r["offset"] for r in layout["state"]["regions"]}
    assert events[0]["regions"]["block"]["kv.2"]["offset"] == layout["block"]["regions"][0]["offset"]
    kernels = json.loads((tiny_engine / "kernels.json").read_text())["kernels"]
    assert {n: k["tile"] for n, k in events[0]["kernels"].items()} == {n: k["tile"] for n, k in kernels.items()}


def test_the_whole_command(tiny_engine: Path) -> None:
    command = [sys.executable, "-m", "deepinfer_gen", "run", str(tiny_engine), "--prompt", "w1 w2", "--json", *GREEDY]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(result.stdout)["token_ids"]) == 4
    for line in ("Model loading took", "KV cache size", "Maximum concurrency", "init engine took"):
        assert line in result.stderr


def test_the_arguments_cost_no_heavy_import() -> None:
    code = (
        "import argparse, sys; from deepinfer_gen.runtime import cli_run;"
        "cli_run.add_arguments(argparse.ArgumentParser());"
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
