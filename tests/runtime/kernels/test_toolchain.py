"""TileLang is imported late, found missing in a sentence, and its CUDA source is looked at for a trap."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
from kernel_cases import KERNELS

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.kernels.tilelang import NAMES, implementation, toolchain

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "runtime" / "kernels" / "tilelang"


def code(failure: pytest.ExceptionInfo[InputError]) -> str:
    """The code of a refusal's only diagnostic."""
    (diagnostic,) = failure.value.diagnostics
    return diagnostic.code


@pytest.mark.parametrize("module", ["runtime.llm", "codegen.cli", "runtime.kernels.tilelang"])
def test_nothing_imports_tilelang_before_a_kernel_is_wanted(module: str) -> None:
    program = f"import sys, deepinfer_gen.{module}; print(sorted({{'tilelang', 'tvm', 'tvm_ffi'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_kernel_has_a_file_a_comparison_and_a_test() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "compile", "dialect", "fp4_values", "toolchain"}
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"toolchain"}
    assert files == set(NAMES) == set(KERNELS) == tests


def test_a_missing_tilelang_is_a_sentence_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(toolchain, "version", missing)
    with pytest.raises(InputError, match=r"tilelang is not installed[\s\S]*deepinfer-gen\[tilelang\]") as failure:
        toolchain.tilelang.__wrapped__()
    assert code(failure) == "DI410"


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "version", lambda name: "0.1.9")
    with pytest.raises(
        InputError, match=r"TileLang 0\.1\.9 is installed, the kernels are written for 0\.1\.15"
    ) as failure:
        toolchain.installed()
    assert code(failure) == "DI411"


def test_the_pin_is_that_of_the_project() -> None:
    assert f'"tilelang=={toolchain.PINNED}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("tool", "expected"), [("host_compiler", "DI412"), ("device_compiler", "DI413")])
def test_a_missing_compiler_is_named(tool: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(InputError, match="on PATH") as failure:
        getattr(toolchain, tool)()
    assert code(failure) == expected


@pytest.mark.parametrize(("kernel", "backend"), [("moe_experts", "tilelang_cpu"), ("top_k", "tilelang_ascend")])
def test_what_is_not_built_is_refused_by_name(kernel: str, backend: str) -> None:
    with pytest.raises(InputError, match="not built") as failure:
        implementation(kernel, backend, {})
    assert code(failure) == "DI414"


def lower_kernels() -> ModuleType:
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("lower_kernels", ROOT / "tools" / "lower_kernels.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_register_that_one_thread_sets_is_found() -> None:
    source = """
  int last[1];
  int total[1];
    if (((int)threadIdx.x) == 0) {
      int condval_5;
      if ((count[0] <= ((int64_t)total[0]))) {
        condval_5 = (last[0] | (1 << (25 - b)));
      } else {
        condval_5 = last[0];
      }
      last[0] = condval_5;
    }
    total[0] = 0;
    if (((int)threadIdx.x) == 0) {
      ((int*)reach)[0] = total[0];
    }
"""
    assert lower_kernels().one_thread_registers(source) == ["last"]


def test_a_result_in_the_cache_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path))
    cached = lower_kernels().cached
    assert cached(["top_k", 1], ".cubin", lambda: b"one") == (b"one", False)
    assert cached(["top_k", 1], ".cubin", lambda: b"two") == (b"one", True)
    assert cached(["top_k", 2], ".cubin", lambda: b"two") == (b"two", False)
