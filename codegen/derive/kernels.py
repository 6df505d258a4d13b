"""One configuration per kernel: static arguments, tile shape, threads, stages and on-chip memory."""

from __future__ import annotations

from deepinfer_gen.codegen.derive.faults import fault
from deepinfer_gen.codegen.derive.kernel_table import IMPLEMENTATIONS, KERNELS, Kernel, Shape
from deepinfer_gen.codegen.plan import PlanBuilder
from deepinfer_gen.formula import operand_names
from deepinfer_gen.specs.resolved import Resolved

_WIDTHS = {"activation": "numerics.activation_bytes", "operand": "numerics.operand_bytes"}


def derive(b: PlanBuilder, r: Resolved) -> None:
    """``kernels.names`` and ``kernels.NAME.{implementation,threads,stages,shared_bytes,tile.X,static.X}``.

    The reason of a kernel's shape is the ``why`` of its ``implementation``.
    """
    b.table(
        "kernels.names",
        tuple(kernel.name for kernel in KERNELS),
        formula="the kernel table",
        inputs={},
        why="every kernel the model calls",
    )
    for kernel in KERNELS:
        _kernel(b, r, kernel)


def _kernel(b: PlanBuilder, r: Resolved, kernel: Kernel) -> None:
    prefix, backend = f"kernels.{kernel.name}", r.hardware.backend
    implementation = IMPLEMENTATIONS[backend]
    b.table(
        f"{prefix}.implementation",
        implementation,
        formula=" | ".join(f"{name}: {value}" for name, value in IMPLEMENTATIONS.items()),
        inputs={"backend": "hardware.backend"},
        why=kernel.why,
    )
    for name, key in kernel.static.items():
        b.formula(
            f"{prefix}.static.{name}", name, unit=b.unit(key), why="fixed when the kernel is compiled", **{name: key}
        )
    if backend == "cpu":
        _reference(b, kernel, prefix)
    else:
        _device(b, r, kernel, prefix, kernel.cuda if backend == "cuda" else kernel.ascend)


def _reference(b: PlanBuilder, kernel: Kernel, prefix: str) -> None:
    source = "kernel table: cpu"
    for name, size in kernel.cpu.items():
        b.given(
            f"{prefix}.tile.{name}", size, source=source, why="block size of the reference operator: bounds its memory"
        )
    b.given(f"{prefix}.threads", 1, source=source, why="the operator library threads by itself")
    b.given(f"{prefix}.stages", 1, source=source, why="no copy pipeline on the CPU")
    b.given(f"{prefix}.shared_bytes", 0, unit="B", source=source, why="no on-chip memory to manage")


def _device(b: PlanBuilder, r: Resolved, kernel: Kernel, prefix: str, shape: Shape) -> None:
    source = f"kernel table: {r.hardware.backend}"
    operands = _WIDTHS | {name: f"{prefix}.static.{name}" for name in kernel.static}
    for name, expression in shape.tile.items():
        b.formula(
            f"{prefix}.tile.{name}",
            expression,
            why="tile extent: fills the matrix units while the pipeline fits on chip",
            **{n: operands[n] for n in operand_names(expression)},
        )
    b.given(f"{prefix}.threads", shape.threads, unit="threads", source=source, why="threads of one kernel block")
    b.given(f"{prefix}.stages", shape.stages, unit="stages", source=source, why="copies in flight while one is used")
    operands |= {"stages": f"{prefix}.stages"} | {name: f"{prefix}.tile.{name}" for name in shape.tile}
    b.formula(
        f"{prefix}.shared_bytes",
        shape.shared,
        unit="B",
        why="on-chip memory of one kernel block",
        **{n: operands[n] for n in operand_names(shape.shared)},
    )
    needed, available = b.integer(f"{prefix}.shared_bytes"), b.integer("hardware.shared_memory_bytes")
    if needed > available:
        raise fault(
            r,
            ("numerics.policy", "hardware"),
            "DI104",
            f"kernel {kernel.name} needs {needed:,} bytes of on-chip memory ({shape.shared}), {r.hardware.name} has"
            f" {available:,}",
            "choose a hardware target with more shared memory, or a numerics.policy with narrower values",
        )
