"""Provenance, purity and the kernel table."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.derive.kernel_table import KERNELS
from deepinfer_gen.codegen.plan import plain
from deepinfer_gen.formula import evaluate

NAMES = (
    "linear",
    "hyper_connection",
    "kv_scatter",
    "sparse_attention",
    "compressor",
    "index_scores",
    "moe_experts",
    "engram_gather",
    "sampler",
)


def test_every_formula_gives_its_value_and_every_leaf_has_a_source(make):
    plan = derive(make())
    for traced in plan.values.values():
        assert traced.why, traced.key
        if traced.source:
            continue
        assert traced.formula, traced.key
        operands = {name: plan[key] for name, key in traced.operands}
        try:
            value = evaluate(traced.formula, operands)
        except (SyntaxError, ValueError):
            continue  # a rule in words
        assert value == traced.value, traced.key


def test_derive_is_pure(make):
    first, second = derive(make()), derive(make())
    assert first.as_dict() == second.as_dict()
    assert first.spec_digest != derive(make({"limits.max_num_seqs": 64})).spec_digest


def test_a_moved_line_changes_no_digest(make):
    written, default = derive(make({"limits.max_num_seqs": 128})), derive(make())
    assert written.as_dict() != default.as_dict()
    assert (written.plan_digest, written.spec_digest) == (default.plan_digest, default.spec_digest)


def test_planning_imports_nothing_heavy():
    code = (
        "import sys, deepinfer_gen.codegen.derive, deepinfer_gen.codegen.tensors;"
        "print([m for m in ('numpy', 'torch', 'tilelang', 'jinja2') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_kernel_names(make):
    assert derive(make())["kernels.names"] == NAMES


@pytest.mark.parametrize(
    ("hardware", "implementation"),
    [("cpu", "reference"), ("sm90", "tilelang_cuda"), ("sm100", "tilelang_cuda"), ("ascend950", "tilelang_ascend")],
)
@pytest.mark.parametrize("policy", ["released", "bf16", "float32", "float32_unquantized"])
def test_kernels_fit_every_shipped_target(make, tiny, hardware, implementation, policy):
    model = {"model": tiny} if hardware == "cpu" else {}
    plan = derive(make({"numerics.policy": policy}, hardware=hardware, **model))
    for kernel in KERNELS:
        prefix = f"kernels.{kernel.name}"
        assert plan[f"{prefix}.implementation"] == implementation
        assert plan.integer(f"{prefix}.shared_bytes") <= plan.integer("hardware.shared_memory_bytes")
        tile = [k for k in plan if k.startswith(f"{prefix}.tile.")]
        assert tile
        assert all(plan.integer(k) > 0 for k in tile)
        assert all(isinstance(plain(plan[f"{prefix}.static.{name}"]), int | str) for name in kernel.static)


def test_reference_blocks(make, tiny):
    plan = derive(make(hardware="cpu", model=tiny))
    assert plan["kernels.index_scores.tile.queries"] == 256
    assert plan["kernels.index_scores.tile.entries"] == 4096
    assert plan["kernels.sparse_attention.tile.queries"] == 256


def test_cpu_counts_decoded_operands(make, tiny):
    plan = derive(make({"parallel.ep": 1, "parallel.engram_placement": "replicated"}, hardware="cpu", model=tiny))
    parameters = (
        plan.integer("weights.dense_parameters")
        + plan.integer("weights.draft_dense_parameters")
        + (10 * 16 + 3 * 8) * plan.integer("weights.expert.parameters")
    )
    assert plan["memory.decoded_operands_bytes"] == 4 * parameters
