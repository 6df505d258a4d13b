"""The frame of the command line: dispatch, help, errors and exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_gen.codegen import cli
from deepinfer_gen.codegen.commands import plan as plan_command

COMMANDS = "plan, explain, fit, check, diff, draw, flatten, init, schema, doctor, build, clean, weights, simulate, run"
TABLE = COMMANDS.split(", ")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_help_lists_every_command_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    assert [c.name for c in cli.COMMANDS] == TABLE
    for command in cli.COMMANDS:
        assert f"  {command.name:<10}{command.summary}\n" in out
    assert "example:\n  deepinfer-gen specs/tiny-cpu.yaml\n" in out


@pytest.mark.parametrize("name", ["", *TABLE])
def test_each_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, out, err = run(capsys, *([name] if name else ["tiny-cpu"]), "--help")
    assert (status, err) == (0, "")
    assert f"example:\n  deepinfer-gen {name}" in out
    assert "exit status: 0, " in out
    assert "--error-format" in out
    assert "--debug" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0
    assert out == f"deepinfer-gen {cli.tool_version()}\n"


COMMON = "[--error-format {text,json,github}] [--debug]"
MESSAGES = {
    (): f"error[DI251]: no spec and no command given\nhelp: deepinfer-gen SPEC, or one of {COMMANDS}\n",
    ("paln", "tiny-cpu"): "error[DI253]: 'paln' is neither a command nor a spec\nhelp: did you mean 'plan'?\n",
    ("tiny-cpi",): "error[DI253]: 'tiny-cpi' is neither a command nor a spec\nhelp: did you mean 'tiny-cpu'?\n",
    (
        "zzz",
    ): f"error[DI253]: 'zzz' is neither a command nor a spec\nhelp: commands are {COMMANDS}; a spec is a YAML file\n",
    ("plan", "tiny-cpu", "--jsn"): (
        "error[DI254]: deepinfer-gen plan knows no option '--jsn'\nhelp: did you mean '--json'?\n"
    ),
    ("clean", "everything"): (
        "error[DI254]: deepinfer-gen clean knows no argument 'everything'\n"
        "help: usage: deepinfer-gen clean [-h] [--dry-run] [--error-format {text,json,github}] [--debug]\n"
    ),
    ("explain", "tiny-cpu"): (
        "error[DI250]: deepinfer-gen explain: the following arguments are required: KEY\n"
        f"help: usage: deepinfer-gen explain [-h] [--full] [--depth N] [--json] {COMMON} SPEC KEY;"
        " deepinfer-gen explain --help says more\n"
    ),
    ("plan", "tiny-cpu", "--dump", "ast"): (
        "error[DI250]: deepinfer-gen plan: argument --dump: invalid choice: 'ast'"
        " (choose from 'spec', 'resolved', 'plan')\n"
        "help: usage: deepinfer-gen plan [-h] [--json] [--dump {spec,resolved,plan}]"
        " [--error-format {text,json,github}] [--debug] SPEC; deepinfer-gen plan --help says more\n"
    ),
    ("plan", "tiny-cpu", "--json", "--dump", "spec"): (
        "error[DI250]: --json prints the plan, --dump spec another stage\n"
        "help: give one of them; --dump prints JSON already\n"
    ),
    ("missing.yaml",): "missing.yaml: error[DI001]: the spec does not exist\nhelp: ",
    ("plan", "no/such.yaml"): "no/such.yaml: error[DI001]: the spec does not exist\nhelp: check the path\n",
    ("build", "no/such"): (
        "no/such: error[DI200]: engine folder does not exist\n"
        "help: name a folder that 'deepinfer-gen SPEC.yaml' wrote, such as generated/tiny-cpu\n"
    ),
}


@pytest.mark.parametrize("arguments", MESSAGES, ids=" ".join)
def test_messages(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, out, err = run(capsys, *arguments)
    expected = MESSAGES[arguments]
    # argparse quotes the choices since Python 3.9 and no longer does from 3.12 on.
    assert (status, out) == (2, "")
    assert err.replace("spec, resolved, plan)", "'spec', 'resolved', 'plan')")[: len(expected)] == expected


def test_a_folder_as_spec_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, str(tmp_path), "--no-build")
    assert status == 2
    assert "error[DI001]: the spec is a folder, not a file" in err


def test_a_file_named_like_a_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan").write_text("engine: {name: x}\n")
    status, _, err = run(capsys, "plan")
    assert status == 2
    assert err == (
        "error[DI252]: 'plan' is a command, and also a file here\n"
        "help: write deepinfer-gen ./plan to generate from the file\n"
    )
    status, _, err = run(capsys, "./plan", "--no-build")
    assert status == 2
    assert err.startswith("./plan:1:")


def test_options_may_come_before_the_spec(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = run(capsys, "-o", str(tmp_path), "--no-build", "tiny-cpu")
    assert (status, out) == (0, f"{tmp_path / 'tiny-cpu'}\n")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_error_format_anywhere(capsys: pytest.CaptureFixture[str], place: int) -> None:
    arguments = ["plan", "no/such.yaml"]
    arguments[place:place] = ["--error-format", "json"]
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert json.loads(err)["code"] == "DI001"


def test_usage_errors_follow_the_error_format(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "paln", "--error-format=github")
    assert status == 2
    assert err.startswith("::error title=DI253::'paln' is neither")


def test_options_after_two_dashes_are_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "explain", "tiny-cpu", "--", "--debug")
    assert status == 2
    assert "has no key '--debug'" in err


def test_an_internal_fault_is_one_line_and_exit_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise RuntimeError("a\nbroken invariant")

    monkeypatch.setattr(plan_command, "run", fail)
    status, out, err = run(capsys, "plan", "tiny-cpu")
    assert (status, out) == (3, "")
    assert err == (
        "error[DI299]: internal fault: RuntimeError: a broken invariant\n"
        "help: this is a bug; report it with the spec and the output of: deepinfer-gen plan tiny-cpu --debug\n"
    )
    with pytest.raises(RuntimeError, match="broken invariant"):
        cli.main(["plan", "tiny-cpu", "--debug"])


def test_a_file_that_cannot_be_written_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, "draw", "tiny-cpu", "-o", str(tmp_path / "no" / "x.svg"))
    assert status == 2
    assert err.startswith(f"error[DI255]: {tmp_path}/no/x.svg: No such file or directory\nhelp: ")


def test_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(args: object) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr(plan_command, "run", interrupt)
    status, out, err = run(capsys, "plan", "tiny-cpu")
    assert (status, out, err) == (130, "", "deepinfer-gen: interrupted\n")


def test_a_closed_stdout_is_no_fault() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "deepinfer_gen", "explain", "tiny-cpu", "*"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


HEAVY = ("torch", "numpy", "tilelang", "safetensors", "tokenizers")
NOT_FOR_HELP = ("pydantic", "ruamel", "jinja2", "deepinfer_gen.codegen.plan", "deepinfer_gen.specs", "subprocess")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], [*HEAVY, *NOT_FOR_HELP]),
        (["plan", "tiny-cpu"], [*HEAVY, "jinja2", "subprocess"]),
        (["explain", "tiny-cpu", "kv.bytes_per_token"], [*HEAVY, "jinja2", "subprocess"]),
        (["check", "tiny-cpu", "-o", "PARENT"], [*HEAVY]),
    ],
    ids=lambda value: str(value[0]),
)
def test_quick_commands_import_nothing_heavy(arguments: list[str], absent: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from deepinfer_gen.codegen.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "sys.stderr.write(f'STATUS {status} MODULES {sorted(sys.modules)}')\n"
    )
    command = [sys.executable, "-c", program, *(str(tmp_path) if a == "PARENT" else a for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    head, _, modules = done.stderr.rpartition(" MODULES ")
    assert head.endswith("STATUS 1" if arguments[0] == "check" else "STATUS 0")
    for name in absent:
        assert f"'{name}'" not in modules


def test_plugins_of_pydantic_do_not_take_part(tmp_path: Path) -> None:
    (tmp_path / "plugged.py").write_text("raise SystemExit('the plugin was loaded')\n")
    metadata = tmp_path / "plugged-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nplugged = plugged\n")
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer_gen", "explain", "tiny-cpu", "kv.block_size"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 2, "error[DI256]: a file cannot be written: No space left on device\nhelp: make room"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_takes_nothing(redirection: str, status: int, said: str, unbuffered: str) -> None:
    command = f'"{sys.executable}" -m deepinfer_gen plan tiny-cpu {redirection}'
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment)
    assert (result.returncode, result.stderr[: len(said)]) == (status, said)


def test_a_closed_stderr_hides_no_status() -> None:
    command = f'"{sys.executable}" -m deepinfer_gen plan no-such-spec >&- 2>&-'
    assert subprocess.run(["sh", "-c", command]).returncode == 2
