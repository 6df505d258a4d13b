"""The engines of a group: loaded, and compared as ranks compare theirs at start-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.folders import engine_folder
from deepinfer_gen.runtime.loader import LoadedEngine, load_engine
from deepinfer_gen.runtime.simulate.records import Record
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest

_SHOWN_KEYS = 3
_DIGEST_DIGITS = 12


def load_group(names: Sequence[str], ranks: int | None) -> list[LoadedEngine]:
    """The engine of each rank: one for all, or one per rank.

    Raises ``InputError``: DI391 (engines and ranks differ in number), DI392 (plans differ), and what loading raises.
    """
    folders = [engine_folder(name) for name in names]
    if len(folders) > 1 and ranks not in (None, len(folders)):
        remedy = "name one engine for all ranks, or one for each"
        raise InputError(Diagnostic("DI391", f"{len(folders)} engines for {ranks} ranks", help=remedy))
    loaded = {folder: load_engine(folder) for folder in dict.fromkeys(folders)}
    if len(folders) == 1:
        engine = loaded[folders[0]]
        return [engine] * (ranks or engine.value("parallel.ranks"))
    engines = [loaded[folder] for folder in folders]
    faults = [f for rank, engine in enumerate(engines) if (f := _mismatch(engines[0], rank, engine))]
    if faults:
        raise InputError(faults)
    return engines


def _mismatch(first: LoadedEngine, rank: int, engine: LoadedEngine) -> Diagnostic | None:
    """Ranks whose plans differ would come to different steps, so they are refused before the first one."""
    digests = [e.extension.plan_digest for e in (first, engine)]
    if digests[0] == digests[1]:
        return None
    keys = sorted({*first.plan, *engine.plan})
    different = [k for k in keys if _value(first, k) != _value(engine, k)]
    shown = "; ".join(f"{k} is {_value(first, k)} and {_value(engine, k)}" for k in different[:_SHOWN_KEYS])
    more = f"; and {len(different) - _SHOWN_KEYS} more" if len(different) > _SHOWN_KEYS else ""
    message = (
        f"rank 0 runs '{first.name}' (plan {digests[0][:_DIGEST_DIGITS]}) and rank {rank} '{engine.name}' (plan"
        f" {digests[1][:_DIGEST_DIGITS]}), which do not agree: {shown}{more}"
    )
    return Diagnostic("DI392", message, str(engine.folder), help="the ranks of a group run engines of one plan")


def _value(engine: LoadedEngine, key: str) -> object:
    return engine.value(key) if key in engine.plan else "absent"


def refuse_impossible(workload: Sequence[WorkloadRequest], lines: Sequence[Record], engine: LoadedEngine) -> None:
    """Offer every request to a scheduler that is thrown away; raises ``InputError`` (DI389) with what it refuses."""
    faults = list(_impossible(workload, lines, engine))
    if faults:
        raise InputError(faults)


def _impossible(
    workload: Sequence[WorkloadRequest], lines: Sequence[Record], engine: LoadedEngine
) -> Iterator[Diagnostic]:
    constants = engine.extension.constants()
    scheduler = engine.extension.Scheduler()
    none = np.zeros(0, np.int32)
    for request, line in zip(workload, lines, strict=True):
        if request.parent and constants["kEngineType"] == "PROMPT":
            yield line.fault("DI389", "the engine refuses it: a PROMPT engine has no branches", "fork_of")
            continue
        if request.prompt_len > constants["kMaxModelLen"]:
            message = f"a prompt of {request.prompt_len} tokens, and max_model_len is {constants['kMaxModelLen']}"
            yield line.fault("DI389", f"the engine refuses it: {message}", "prompt_len")
            continue
        tokens = np.zeros(request.prompt_len, np.int32)
        try:
            if constants["kEngineType"] == "COMPLETION":
                tokens = np.zeros(request.prompt_len + 1, np.int32)
                scheduler.add_prompted(request.number, tokens, request.prompt_len, request.max_tokens, 0, none)
            else:
                more = (request.checkpoints, request.image_spans)
                scheduler.add(request.number, tokens, request.max_tokens, 0, none, *more)
        except ValueError as fault:
            yield line.fault("DI389", f"the engine refuses it: {str(fault).partition(': ')[2]}", "prompt_len")
            continue
        scheduler.abort(request.number)
        scheduler.outcomes()
