"""The house rules hold for every tracked file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import rules
from .allowed import IMPORTS, LITERALS

ROOT = Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = (".py", ".hpp", ".cpp", ".jinja")
TEXT_SUFFIXES = (*SOURCE_SUFFIXES, ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".sh", "")
OPTIONAL_MODULES = ("tilelang", "torch_npu", "deep_ep")
"""Accelerator packages that a plain machine lacks; a backend that needs one may fail to import for that reason only."""


def tracked(suffixes: tuple[str, ...], *folders: str) -> list[Path]:
    """Files that git knows or would add, below ``folders`` (everywhere if none is given)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    paths = (ROOT / name for name in listing.split("\0") if name)
    return sorted(p for p in set(paths) if p.suffix in suffixes and p.is_file())


def findings(rule: Callable[[str], list[str]], paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for fault in rule(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)}:{fault}"


def handwritten(paths: list[Path]) -> list[Path]:
    return [p for p in paths if p.relative_to(ROOT).parts[0] != "generated"]


def right(paths: list[Path]) -> list[Path]:
    """Without the specs and configs that are wrong on purpose."""
    return [p for p in paths if p.relative_to(ROOT).parts[:2] != ("tests", "errors")]


def test_the_lints_see_files() -> None:
    assert {"codegen", "runtime", "specs", "src", "tests"} <= {p.relative_to(ROOT).parts[0] for p in tracked((".py",))}


def test_files_are_short() -> None:
    assert list(findings(rules.too_long, handwritten(tracked(SOURCE_SUFFIXES)))) == []


def test_no_deferred_work() -> None:
    assert list(findings(rules.markers, right(tracked(TEXT_SUFFIXES)))) == []


def test_no_machine_paths() -> None:
    assert list(findings(rules.machine_paths, right(tracked(TEXT_SUFFIXES)))) == []


def test_no_hidden_exceptions() -> None:
    assert list(findings(rules.hidden_exceptions, tracked((".py",)))) == []


def test_imports_use_the_package_name() -> None:
    assert list(findings(rules.bare_imports, tracked((".py",)))) == []


def test_runtime_derives_no_role() -> None:
    assert list(findings(rules.runtime_roles, runtime_files())) == []


def test_runtime_imports_nothing_upstream() -> None:
    assert runtime_findings(rules.upstream_imports, IMPORTS) == []


def test_runtime_holds_no_constant() -> None:
    assert runtime_findings(rules.runtime_constants, LITERALS) == []


def test_every_exception_is_used_and_has_a_reason() -> None:
    for rule, table in ((rules.upstream_imports, IMPORTS), (rules.runtime_constants, LITERALS)):
        for name, groups in table.items():
            found = rule((ROOT / "runtime" / name).read_text(encoding="utf-8"))
            for entries, reason in groups:
                assert reason
                assert [e for e in entries if not any(f" {e} in " in f or f" {e}," in f for f in found)] == []


def test_templates_hold_no_logic() -> None:
    assert list(findings(rules.template_logic, tracked((".jinja",)))) == []


def test_no_literal_draft_length_in_headers() -> None:
    headers = tracked((".hpp", ".cpp"), "templates")
    assert [f for n in (3, 5, 7) for f in findings(partial(rules.nextn_literals, nextn=n), headers)] == []


def test_bare_package_names_are_never_modules() -> None:
    modules = ["deepinfer_gen"]
    for folder in rules.BARE_PACKAGES:
        files = (p.relative_to(ROOT).with_suffix("") for p in tracked((".py",), folder))
        modules += [f"deepinfer_gen.{'.'.join(p.parts)}".removesuffix(".__init__") for p in files]
    program = f"""
import importlib, sys
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.split(".")[0] not in {OPTIONAL_MODULES!r}:
            raise
print([n for n in {rules.BARE_PACKAGES!r} if n in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("folder", sorted(p.name for p in (ROOT / "generated").glob("*/")))
def test_no_literal_draft_length_in_generated_sources(folder: str) -> None:
    sources = tracked((".hpp", ".cpp"), f"generated/{folder}")
    header = (ROOT / "generated" / folder / "engine_config.hpp").read_text(encoding="utf-8")
    nextn = int(header.split("kNextn = ")[1].split(";")[0])
    if nextn:
        assert list(findings(partial(rules.nextn_literals, nextn=nextn), sources)) == []


def runtime_findings(rule: Callable[[str, Collection[Any]], list[str]], table: Mapping[str, Any]) -> list[str]:
    """Findings of ``rule`` in the runtime beyond the exceptions of ``table``."""
    found = []
    for path in runtime_files():
        name = path.relative_to(ROOT / "runtime").as_posix()
        allowed = [entry for entries, _ in table.get(name, ()) for entry in entries]
        found += [f"runtime/{name}:{f}" for f in rule(path.read_text(encoding="utf-8"), allowed)]
    return found


def runtime_files() -> list[Path]:
    """Everything in the runtime but the types that generated files are made of."""
    return [p for p in tracked((".py",), "runtime") if p.name != "plan_types.py"]
