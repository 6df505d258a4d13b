"""A checkpoint against the demand: each difference is named with tensor, shard, what is expected and what is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.consistency import short
from deepinfer_gen.runtime.weights_files import INDEX_NAME, Index, Shard
from deepinfer_gen.runtime.weights_header import StoredTensor
from deepinfer_gen.runtime.weights_names import SKIPPED_PREFIXES

# A wrong checkpoint can differ in every tensor; the first faults say what is wrong.
_SHOWN_FAULTS = 20
_OTHER = "use the engine's checkpoint"


def open_shards(folder: Path, index: Index) -> dict[str, Shard]:
    """Every shard that the index names, opened and its header checked; ``InputError`` with the faults of all."""
    shards: dict[str, Shard] = {}
    faults: list[Diagnostic] = []
    for name, wanted_by in sorted(index.shards.items()):
        try:
            shards[name] = Shard(folder, name, wanted_by)
        except InputError as error:
            faults += error.diagnostics
    _refuse(faults)
    return shards


def check_tensors(
    index: Index, shards: Mapping[str, Shard], expected: Mapping[str, TensorSpec]
) -> dict[str, StoredTensor]:
    """All tensors of the shards by name, after comparing them with index and demand.

    Raises ``InputError``: DI354 (missing), DI355 (extra, or index and shards differ), DI356 (in two shards), DI357
    (shape), DI358 (type).
    """
    found: dict[str, StoredTensor] = {}
    faults: list[Diagnostic] = []
    for shard in shards.values():
        for name, stored in shard.tensors.items():
            if name in found:
                message = f"tensor {short(name)} lies in '{found[name].shard}' and again here"
                faults.append(Diagnostic("DI356", message, file=shard.name, help="a tensor lies in one shard"))
            found.setdefault(name, stored)
    faults += _index_faults(index.shard_of, found, expected)
    faults += _tensor_faults(index.shard_of, found, expected)
    _refuse(faults)
    return found


def _refuse(faults: Sequence[Diagnostic]) -> None:
    shown = list(faults[:_SHOWN_FAULTS])
    if len(faults) > len(shown):
        rest = f"{len(faults) - len(shown)} more faults like these"
        shown.append(Diagnostic("DI359", rest, file=INDEX_NAME, help="is this the engine's checkpoint?"))
    if shown:
        raise InputError(shown)


def _index_faults(
    index: Mapping[str, str], found: Mapping[str, StoredTensor], expected: Mapping[str, TensorSpec]
) -> Iterator[Diagnostic]:
    remedy = "index and shards must agree"
    for name, shard in index.items():
        if name not in found and name not in expected:
            message = f"tensor {short(name)} is listed in '{shard}', which does not hold it"
            yield Diagnostic("DI355", message, file=INDEX_NAME, help=remedy)
    for name, stored in found.items():
        listed = index.get(name)
        if listed is None:
            message = f"tensor {short(name)} lies in this shard and the index does not list it"
            yield Diagnostic("DI355", message, file=stored.shard, help=remedy)
        elif listed != stored.shard:
            message = f"tensor {short(name)} is listed in '{listed}' and lies in '{stored.shard}'"
            yield Diagnostic("DI355", message, file=INDEX_NAME, help=remedy)


def _tensor_faults(
    index: Mapping[str, str], found: Mapping[str, StoredTensor], expected: Mapping[str, TensorSpec]
) -> Iterator[Diagnostic]:
    for name, spec in expected.items():
        stored = found.get(name)
        if stored is None:
            place = f"shard '{index[name]}' does not hold it" if name in index else "the index does not list it"
            message = f"tensor '{name}' is missing: expected {spec}, {place}"
            yield Diagnostic("DI354", message, file=index.get(name, INDEX_NAME), help=_OTHER)
        elif stored.spec.shape != spec.shape:
            message = f"tensor '{name}' has shape {short(list(stored.spec.shape))}, expected {spec}"
            yield Diagnostic("DI357", message, file=stored.shard, help=_OTHER)
        elif stored.spec.dtype != spec.dtype:
            message = f"tensor '{name}' has type {stored.spec.dtype}, expected {spec}"
            yield Diagnostic("DI358", message, file=stored.shard, help=_OTHER)
    for name, stored in found.items():
        if name not in expected and not name.startswith(SKIPPED_PREFIXES):
            found_spec = f"{stored.spec.dtype} {short(list(stored.spec.shape))}"
            message = f"tensor {short(name)} {found_spec} is not part of the engine's model"
            yield Diagnostic("DI355", message, file=stored.shard, help=_OTHER)
