"""``flatten``: the result compiles by itself and shows only the code of its spec."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deepinfer_gen.codegen.flatten import evaluate_condition, flatten, resolve_branches, with_engine_headers
from deepinfer_gen.diagnostics import InputError

EXAMPLE = Path(__file__).parent / "example"
SPECULATIVE = Path(__file__).parent.parent / "sim" / "configs" / "speculative" / "engine_config.hpp"


def example(config: Path = EXAMPLE / "engine_config.hpp", **replaced: str) -> dict[str, str]:
    generated = {"engine_config.hpp": config.read_text(), "scheduler.hpp": (EXAMPLE / "scheduler.hpp").read_text()}
    return with_engine_headers({**generated, **replaced})


@pytest.mark.parametrize("config", [EXAMPLE / "engine_config.hpp", SPECULATIVE])
def test_the_flat_source_compiles_alone_and_has_no_open_branch(tmp_path: Path, config: Path) -> None:
    text = flatten(example(config))
    assert not re.search(r"if constexpr \([^)]*Cfg::", text)
    assert '#include "' not in text
    assert text.index("#include <") < text.index("namespace")
    flat = tmp_path / "flat.cpp"
    flat.write_text(text + "\ntemplate class deepinfer::Core<deepinfer::generated::EngineConfig, deepinfer::NormalStep, "
                    "deepinfer::FixedVerification, deepinfer::OutputLengthOrder>;\n")  # fmt: skip
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(flat)]
    assert subprocess.run(command, check=False).returncode == 0


def test_each_header_appears_once_after_what_it_includes() -> None:
    text = flatten(example())
    names = re.findall(r"^// ((?:engine/)?\w+\.hpp)$", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == "scheduler.hpp"
    assert names.index("engine/block_manager.hpp") < names.index("engine/prefill.hpp") < names.index("engine/core.hpp")


def test_only_the_taken_branch_of_each_spec_is_left() -> None:
    stop, recompute = flatten(example()), flatten(example(SPECULATIVE))
    assert "end(index, Reason::Preempted, -1);" in stop
    assert "requests.requeue(index);" not in stop
    assert "end(index, Reason::Preempted, -1);" not in recompute
    assert "    vacate(place);\n    requests.requeue(index);\n  }" in recompute
    assert "2 * Cfg::kCpSize);" not in stop
    assert "if (size < left) size -= size % (2 * Cfg::kCpSize);" in recompute


def test_a_normal_engine_shows_no_code_of_the_other_types() -> None:
    text = flatten(example())
    assert "kEngineType !=" not in text
    assert "PromptStep" not in text
    assert "local.want = Policy::wants_prefill(state_);" in text


def test_a_missing_header_is_named() -> None:
    composition = '#include "engine/core.hpp"\n#include "engine/step_prompt.hpp"\n'
    with pytest.raises(InputError, match=r"'scheduler\.hpp' includes 'engine/step_prompt\.hpp', which does not exist"):
        flatten(example(**{"scheduler.hpp": composition}))


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
        ("\n  if constexpr (Cfg::kOff) {\n    f();\n  } else if constexpr (Cfg::kOn) {\n    g();\n  }\n", "\n  g();\n"),
        ("\n  if constexpr (Cfg::kOn) {\n    if constexpr (Cfg::kOff) {\n      f();\n    }\n    g();\n  }\n", "\n  g();\n"),
        ("\n  if constexpr (X) {\n    if constexpr (Cfg::kOn) f();\n  }\n", "\n  if constexpr (X) {\n    f();\n  }\n"),
        ('\n  // if constexpr (Cfg::kOn) {\n  f("if constexpr (Cfg::kOn) {");\n', None),
    ],
)  # fmt: skip
def test_branches(text: str, resolved: str | None) -> None:
    assert resolve_branches(text, CONSTANTS) == (text if resolved is None else resolved)
