"""One simulation from its inputs to its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.loader import LoadedEngine
from deepinfer_gen.runtime.simulate.cost import StepCost
from deepinfer_gen.runtime.simulate.fault_plan import FaultEvent
from deepinfer_gen.runtime.simulate.group import End, Group
from deepinfer_gen.runtime.simulate.rank import Choices, Rank
from deepinfer_gen.runtime.simulate.requests import Requests
from deepinfer_gen.runtime.simulate.statistics import Statistics, summary_lines
from deepinfer_gen.runtime.simulate.trace import Observer, TraceWriter
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest
from deepinfer_gen.runtime.speculative.cost_curve import affine_curve, read_curve


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a simulation ended, and what it came to."""

    end: End
    statistics: Statistics
    requests: Requests
    summary: list[str]


def cost_of(engine: LoadedEngine, curve: Path | None) -> StepCost:
    """The modelled device's cost: the curve file, else an affine curve from the hardware table.

    Raises ``InputError`` for a curve that the engine cannot use (DI370 to DI376), or has no use for (DI394).
    """
    decides = not Choices.of(engine.plan).fixed
    extension = engine.extension
    sizes = extension.constants().get("kGraphSizes", [])
    if not sizes:
        if curve is not None:
            message = f"'{engine.name}' decodes nothing, so a cost curve says nothing about it"
            raise InputError(Diagnostic("DI394", message, str(curve), help="leave --curve out"))
        return StepCost((), (), decides=False)
    if curve is None:
        return StepCost(affine_curve(engine.plan), sizes, decides=decides)
    read = read_curve(curve, plan_digest=extension.plan_digest, sizes=sizes)
    return StepCost(read.milliseconds, sizes, decides=decides)


def simulate(
    engines: Sequence[LoadedEngine],
    workload: Sequence[WorkloadRequest],
    plan: Sequence[FaultEvent] = (),
    *,
    seed: int = 0,
    steps: int | None = None,
    cost: StepCost | None = None,
    trace: TextIO | None = None,
) -> Outcome:
    """Run the group to its end, or ``steps`` steps. Raises ``ViolationError``.

    ``cost`` is used up by one run; None takes that of the hardware table.
    """
    engine = engines[0]
    constants = engine.extension.constants()
    requests = Requests(
        workload,
        seed=seed,
        nextn=constants["kNextn"],
        max_model_len=constants["kMaxModelLen"],
        decodes=constants["kEngineType"] != "PROMPT",
    )
    choices = Choices.of(engine.plan)
    ranks = [Rank(i, e.extension, requests, workload, choices) for i, e in enumerate(engines)]
    statistics = Statistics(len(ranks))
    observers: list[Observer] = [statistics]
    if trace is not None:
        observers.append(TraceWriter(trace, requests.names))
    cost = cost or cost_of(engine, None)
    group = Group(
        ranks, requests, workload, plan, cost, observers, zos=choices.zos, fingerprints=trace is not None
    )  # fmt: skip
    end = group.run(steps)
    notes = []
    if group.caller.forks_without_parent:
        notes.append(f"{group.caller.forks_without_parent} forks failed: their parent had ended")
    if group.caller.refused_events:
        notes.append(f"{group.caller.refused_events} calls of the fault plan were refused, as the state demands")
    return Outcome(end, statistics, requests, summary_lines(engine.name, statistics, requests, end, cost, notes))
