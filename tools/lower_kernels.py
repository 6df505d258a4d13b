"""Compile every TileLang kernel for sm_90a and sm_100a, and lower the Ascend ones: ``python tools/lower_kernels.py``.

Needs the extra ``tilelang`` and nvcc, no GPU. Compile-time arguments are those of the released model in the shipped
normal engine. Results lie in the build cache under a key over the kernels' sources, arguments, architecture and tool
versions; a line says ``cached`` where they were there already.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deepinfer_gen.build_cache import cache_root
from deepinfer_gen.canonical import digest_json
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.durable import write_file
from deepinfer_gen.runtime.kernels.tilelang import NAMES, compile, toolchain
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "runtime" / "kernels" / "tilelang"
PLAN = ROOT / "generated" / "v41-flash-normal-ep8" / "plan.json"
ARCHITECTURES = ("sm_90a", "sm_100a")
ASCEND = ("scaled_exp", "zos_fix")
PACKAGE = "deepinfer_gen.runtime.kernels.tilelang"


@dataclass(frozen=True, slots=True)
class Instance:
    """One kernel with its compile-time arguments; ``label`` tells instances of a kernel apart."""

    kernel: str
    label: str
    static: Mapping[str, Any]


def instances(plan: Mapping[str, Any]) -> Iterator[Instance]:
    """Every kernel at the shapes of a Plan (key to value)."""
    vocab = {"vocab_size": plan["model.config.vocab_size"], "tile": 4096, "threads": 512}
    rows = {"rows": 4, "threads": 128}
    for kind, group, scale in (("main", 16, "e4m3"), ("index", 32, "ue8m0")):
        dims = plan["model.config.head_dim" if kind == "main" else "model.config.index_head_dim"]
        static = {"dims": dims, "group": group, "scale": scale, **rows}
        yield Instance("fp4_pack", kind, static)
        yield Instance("fp4_unpack", kind, static)
    for kind in ("swa", "main", "index"):
        size = plan[f"kv.{kind}_row_bytes"]
        yield Instance("kv_scatter", kind, {"width": size // 4, "element": "int32", "threads": 128})
    yield Instance("kv_scatter", "bytes", {"width": plan["kv.swa_row_bytes"], "element": "uint8", "threads": 128})
    yield Instance("mirror_cp", "cp8", {"cp": 8, "tile": 256, "threads": 256})
    yield Instance("top_k", "", vocab)
    yield Instance("top_p", "", vocab)
    nextn, max_rows = plan["speculative.nextn"], plan["graphs.max_rows"]
    yield Instance("varlen_split", "", {"max_rows": max_rows, "nextn": nextn, "threads": 256})
    history = plan["model.config.engram_max_ngram_size"] - 1
    yield Instance("zos_fix", "", {"max_q": plan["speculative.max_q"], "history": history, "threads": 32})


def ascend_instances(plan: Mapping[str, Any]) -> Iterator[Instance]:
    """The kernels with an Ascend form."""
    rows, vocab = plan["limits.max_num_seqs"], plan["model.config.vocab_size"]
    yield Instance("scaled_exp", "", {"rows": rows, "columns": vocab, "tile": 1280, "threads": 256})
    yield Instance("zos_fix", "", {"rows": rows, "max_q": plan["speculative.max_q"], "programs": 32, "threads": 128})


def one_thread_registers(source: str) -> list[str]:
    """Registers of CUDA source that a single thread sets, while all threads go on to use their own.

    TileLang guards a store outside of parallel loops that reads the result of a reduction, whatever it stores to.
    """
    guarded = re.findall(r"^( *)if \(+\(int\)threadIdx\.x\) == 0\)+ \{\n(.*?)^\1\}", source, re.DOTALL | re.MULTILINE)
    registers = set(re.findall(r"^  \w+ (\w+)\[\d+\];", source, re.MULTILINE))
    stores = {name for _, body in guarded for name in re.findall(r"^ *(\w+)\[\w+\] = ", body, re.MULTILINE)}
    return sorted(registers & stores)


def cached(key: Any, suffix: str, make: Callable[[], bytes]) -> tuple[bytes, bool]:
    """What ``make`` gives, from the cache if it is there; and whether it was."""
    path = cache_root() / "kernels" / f"{digest_json(key)}{suffix}"
    if path.is_file():
        return path.read_bytes(), True
    content = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return content, False


def compile_for(instance: Instance, arch: str) -> bytes:
    """Device code of an instance."""
    module = import_module(f"{PACKAGE}.{instance.kernel}")
    body = getattr(module, f"get_{instance.kernel}_kernel")(Dialect("cuda"), **instance.static)
    source = compile.lower_cuda(body, arch)
    if alone := one_thread_registers(source):
        raise SystemExit(f"error: {instance.kernel} for {arch}: one thread alone sets {', '.join(alone)}")
    return compile.cubin(source, arch)


def lower_for_ascend(instance: Instance) -> bytes:
    """AscendC source of an instance."""
    toolchain.tilelang()
    language = import_module("tilelang.ascend.language")
    module = import_module(f"{PACKAGE}.ascend.{instance.kernel}")
    body = getattr(module, f"get_{instance.kernel}_kernel")(language, **instance.static)
    return compile.lower_ascend(body).encode()


def main() -> int:
    """Print one line per kernel and architecture; exit 2 where a tool is missing."""
    plan = {key: entry["value"] for key, entry in json.loads(PLAN.read_text(encoding="utf-8"))["values"].items()}
    kernels = list(instances(plan))
    if missing := set(NAMES) - {instance.kernel for instance in kernels}:
        raise SystemExit(f"error: no arguments for {', '.join(sorted(missing))}")
    try:
        nvcc = subprocess.run([toolchain.device_compiler(), "--version"], capture_output=True, text=True, check=True)
        tools = [toolchain.installed(), version("apache-tvm-ffi"), nvcc.stdout]
    except InputError as fault:
        print(fault, file=sys.stderr)
        return 2
    sources = {str(p.relative_to(SOURCES)): p.read_text(encoding="utf-8") for p in sorted(SOURCES.rglob("*.py"))}
    for instance in kernels:
        for arch in ARCHITECTURES:
            report(instance, arch, [sources, tools], ".cubin", lambda i=instance, a=arch: compile_for(i, a))
    for instance in ascend_instances(plan):
        report(instance, "ascend", [sources, tools], ".asc", lambda i=instance: lower_for_ascend(i))
    return 0


def report(instance: Instance, arch: str, inputs: list[Any], suffix: str, make: Callable[[], bytes]) -> None:
    """Make or find one result and print its line."""
    start = time.monotonic()
    key = [instance.kernel, dict(instance.static), arch, *inputs]
    content, found = cached(key, suffix, make)
    kind = "bytes of AscendC" if arch == "ascend" else "bytes of cubin"
    spent = "cached" if found else f"{time.monotonic() - start:.1f} s"
    name = " ".join(filter(None, (instance.kernel, instance.label)))
    print(f"{name:20} {arch:8} {len(content):8,} {kind:16} {spent}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
