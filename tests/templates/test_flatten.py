"""``flatten``: the result compiles by itself and shows only the code of its spec."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deepinfer_gen.codegen.cli import main
from deepinfer_gen.codegen.flatten import evaluate_condition, flatten, resolve_branches
from deepinfer_gen.engine_sources import installed_sources

EXAMPLE = Path(__file__).parent / "example"
SPECULATIVE = Path(__file__).parent.parent / "sim" / "configs" / "speculative" / "engine_config.hpp"


def example(config: Path = EXAMPLE / "engine_config.hpp") -> dict[str, str]:
    headers = {name: content.decode() for name, content in installed_sources().items()}
    composition = (EXAMPLE / "scheduler.hpp").read_text()
    return {**headers, "engine_config.hpp": config.read_text(), "scheduler.hpp": composition}


@pytest.mark.parametrize("config", [EXAMPLE / "engine_config.hpp", SPECULATIVE])
def test_the_flat_source_compiles_alone_and_has_no_open_branch(tmp_path: Path, config: Path) -> None:
    text = flatten(example(config))
    assert not re.search(r"if constexpr \([^)]*Cfg::", text)
    assert '#include "' not in text
    assert text.index("#include <") < text.index("namespace")
    assert_compiles(text, tmp_path)


def test_the_command_prints_a_source_that_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flatten", "tiny-cpu"]) == 0
    assert_compiles(capsys.readouterr().out, tmp_path)


def assert_compiles(text: str, folder: Path) -> None:
    """``text`` alone, with every member of the scheduler instantiated."""
    policies = "deepinfer::NormalStep, deepinfer::FixedVerification, deepinfer::OutputLengthOrder"
    everything = f"template class deepinfer::Core<deepinfer::generated::EngineConfig, {policies}>;"
    (folder / "flat.cpp").write_text(f"{text}\n{everything}\n")
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(folder / "flat.cpp")]
    assert subprocess.run(command, check=False).returncode == 0


def test_each_header_appears_once_after_what_it_includes() -> None:
    text = flatten(example())
    names = re.findall(r"^// ((?:engine/)?\w+\.hpp)$", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == "scheduler.hpp"
    for name, text in example().items():
        if name in names:
            for included in re.findall(r'^#include "(.*)"$', text, re.MULTILINE):
                assert names.index(included) < names.index(name)


def test_only_the_taken_branch_of_each_spec_is_left() -> None:
    stop, recompute = flatten(example()), flatten(example(SPECULATIVE))
    assert "state.end(index, Reason::Preempted, -1);" in stop
    assert "requests.requeue(index);" not in stop
    assert "end(index, Reason::Preempted, -1);" not in recompute
    assert "    state.leave(place);\n    state.requests.requeue(index);\n  }" in recompute
    assert "agreed_ = size;" not in stop + recompute, "ranks of these engines agree on no graph"


def test_a_normal_engine_shows_no_code_of_the_other_types() -> None:
    text = flatten(example())
    assert "if constexpr (Cfg::kEngineType" not in text
    assert "PromptStep" not in text
    assert "local.want = Policy::PrefillHalf::wants(state_);" in text


def test_a_policy_that_is_not_built_is_a_comment() -> None:
    sources = example()
    sources["scheduler.hpp"] = '#include "engine/core.hpp"\n#include "engine/step_none.hpp"\nusing S = NoneStep;\n'
    text = flatten(sources)
    assert "// engine/step_none.hpp\n" in text
    assert "does not have this policy" in text
    assert text.endswith("using S = NoneStep;\n")


CONSTANTS: dict[str, int | str] = {"kA": 3, "kOn": 1, "kOff": 0, "kType": "EngineType::Normal"}


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("Cfg::kOn", True),
        ("!Cfg::kOn", False),
        ("Cfg::kA > 1 && !(Cfg::kOff || Cfg::kA == 4)", True),
        ("Cfg::kType != EngineType::Prompt", True),
        ("EngineType::Normal == Cfg::kType", True),
        ("Cfg::kUnknown", None),
        ("Cfg::kOn && std::integral<T>", None),
    ],
)
def test_conditions(condition: str, value: bool | None) -> None:
    assert evaluate_condition(condition, CONSTANTS) is value


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("\n  if constexpr (Cfg::kOn) f(1);\n  g();\n", "\n  f(1);\n  g();\n"),
        ("\n  if constexpr (Cfg::kOff) f(1);\n  g();\n", "\n  g();\n"),
        ("\n  if constexpr (Cfg::kOff) {\n    f();\n  } else {\n    g(';');\n    h();\n  }\n", "\n  g(';');\n  h();\n"),
        ("\n if constexpr (Cfg::kOff) {\n  f();\n } else if constexpr (Cfg::kOn) {\n  g();\n }\n", "\n g();\n"),
        ("\n if constexpr (Cfg::kOn) {\n  if constexpr (Cfg::kOff) {\n   f();\n  }\n  g();\n }\n", "\n g();\n"),
        ("\n if constexpr (X) {\n  if constexpr (Cfg::kOn) f();\n }\n", "\n if constexpr (X) {\n  f();\n }\n"),
        ('\n  // if constexpr (Cfg::kOn) {\n  f("if constexpr (Cfg::kOn) {");\n', None),
    ],
)
def test_branches(text: str, resolved: str | None) -> None:
    assert resolve_branches(text, CONSTANTS) == (text if resolved is None else resolved)
