"""``derive``: from the resolved spec to the Plan. A pure function; every number is written as its own explanation."""

from __future__ import annotations

from deepinfer_gen.codegen.derive import (
    active,
    engram,
    eplb,
    flops,
    graphs,
    kernels,
    kv,
    memory,
    model,
    numerics,
    parallel,
    roles,
    roots,
    rope,
    speculative,
    state,
    weights,
    workspace,
    yoco,
)
from deepinfer_gen.codegen.plan import Plan, PlanBuilder
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.dump import spec_digest
from deepinfer_gen.specs.resolved import Resolved

_SUBJECTS = (
    roots.derive,
    speculative.derive,
    model.derive,
    yoco.derive,
    roles.derive,
    rope.derive,
    engram.derive,
    kv.derive,
    state.derive,
    graphs.derive,
    eplb.derive,
    parallel.derive,
    weights.derive,
    active.derive,
    flops.derive,
    numerics.derive,
    kernels.derive,
    workspace.derive,
    memory.derive,
)


def derive(resolved: Resolved) -> Plan:
    """Compute every constant of the engine.

    Raises ``InputError`` (DI100 to DI149, DI440, DI441) where a rule needs derived numbers or roles: rows of whole
    bytes, aligned elements, Engram table sizes, recomputed truncation, the memory plan, shared memory of kernels.
    """
    plan, fault = derive_unfit(resolved)
    if fault:
        raise fault
    return plan


def derive_unfit(resolved: Resolved) -> tuple[Plan, InputError | None]:
    """Like ``derive``, but a memory plan that does not fit (DI102, DI103) is given beside the Plan and not raised."""
    builder = PlanBuilder()
    for subject in _SUBJECTS:
        subject(builder, resolved)
    fault = memory.shortage(builder, resolved)
    plan = builder.build(name=resolved.name, spec_file=resolved.spec_file, spec_digest=spec_digest(resolved))
    return plan, fault
