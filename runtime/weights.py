"""The weights of one checkpoint, checked in full before any is used, held as stored and decoded on request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.model.quant import decode_e4m3_tiles, decode_mxfp4_rows
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights_files import INDEX_NAME, MappedShards, StoredTensor, read_header, read_index
from deepinfer_gen.runtime.weights_names import DRAFT_PREFIX, SKIPPED_PREFIXES, TensorSpec, expected_tensors

if TYPE_CHECKING:
    from torch import Tensor

# A wrong checkpoint can differ in every tensor; the first faults say what is wrong.
_SHOWN_FAULTS = 20


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a checkpoint held: ``loaded`` tensors, ``checked`` only (draft layers not used), ``skipped`` (vision)."""

    shards: int
    loaded: int
    loaded_bytes: int
    checked: int
    checked_bytes: int
    skipped: int
    skipped_bytes: int


class TensorSource(Protocol):
    """Where the modules take their tensors from, by released name."""

    @property
    def tile(self) -> int:
        """Side of the square of a dense FP8 weight that shares one scale byte."""
        ...

    @property
    def report(self) -> LoadReport:
        """Counts and bytes of the tensors read, checked and skipped."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """Stored type and shape."""
        ...

    def stored(self, name: str) -> Tensor:
        """The tensor as stored; 8-bit floats and packed integers as uint8."""
        ...

    def stack(self, names: Sequence[str]) -> Tensor:
        """Equal tensors as one [len(names), ...]."""
        ...


class Weights:
    """Tensors by released name, from the mapped files."""

    def __init__(self, folder: Path, tensors: Mapping[str, StoredTensor], tile: int, report: LoadReport) -> None:
        self._shards = MappedShards(folder)
        self._tensors = tensors
        self.tile = tile
        self.report = report

    def spec(self, name: str) -> TensorSpec:
        """Stored type and shape."""
        return self._tensors[name].spec

    def stored(self, name: str) -> Tensor:
        """The tensor as it is in the file; 8-bit floats and packed integers as uint8."""
        return self._shards.tensor(self._tensors[name])

    def stack(self, names: Sequence[str]) -> Tensor:
        """Equal tensors as one [len(names), ...]."""
        return torch.stack([self.stored(name) for name in names])

    def decode(self, name: str) -> Tensor:
        """One float32 copy of a tensor; a quantised ``X.weight`` is scaled by its ``X.scale``."""
        stored = self.stored(name)
        kind = self._tensors[name].spec.dtype
        if kind == "F8_E4M3":
            return decode_e4m3_tiles(stored, self._scale(name), self.tile)
        if kind == "I8":
            return decode_mxfp4_rows(stored, self._scale(name))
        return stored.to(torch.float32, copy=True)

    def _scale(self, name: str) -> Tensor:
        return self.stored(f"{name.removesuffix('weight')}scale")


def load_weights(plan: ModelPlan, constants: Constants, folder: Path) -> Weights:
    """Check every tensor of the checkpoint against the plan, then open it.

    ``InputError`` lists the faults, each naming the tensor, its shard, what is expected and what was found: missing,
    extra or duplicate tensors, wrong types or shapes, absent or truncated shards, an index that leaves the folder.
    """
    index = read_index(folder)
    shards = sorted(set(index.values()))
    found: dict[str, StoredTensor] = {}
    faults: list[Diagnostic] = []
    for shard in shards:
        for name, stored in read_header(folder, shard).items():
            if name in found:
                message = f"tensor '{name}' lies in '{found[name].shard}' and again here"
                faults.append(Diagnostic("DI356", message, file=shard, help="a tensor lies in one shard"))
            found.setdefault(name, stored)
    expected = expected_tensors(plan, constants)
    faults += _index_faults(index, found, expected)
    faults += _tensor_faults(expected, index, found)
    if faults:
        shown = faults[:_SHOWN_FAULTS]
        if len(faults) > len(shown):
            rest = f"{len(faults) - len(shown)} more tensors differ from the engine's model"
            shown.append(Diagnostic("DI359", rest, file=INDEX_NAME, help="is this the engine's checkpoint?"))
        raise InputError(shown)
    skipped = {n: t for n, t in found.items() if n.startswith(SKIPPED_PREFIXES)}
    checked = {n: t for n, t in found.items() if n.startswith(DRAFT_PREFIX) and plan.draft is None}
    loaded = {n: t for n, t in found.items() if n not in skipped and n not in checked}
    report = LoadReport(
        shards=len(shards),
        loaded=len(loaded),
        loaded_bytes=_bytes(loaded),
        checked=len(checked),
        checked_bytes=_bytes(checked),
        skipped=len(skipped),
        skipped_bytes=_bytes(skipped),
    )
    return Weights(folder, loaded, constants.weight_tile, report)


def _bytes(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(t.stop - t.start for t in tensors.values())


def _index_faults(
    index: Mapping[str, str], found: Mapping[str, StoredTensor], expected: Collection[str]
) -> Iterator[Diagnostic]:
    for name, shard in index.items():
        if name not in found and name not in expected:
            message = f"tensor '{name}' is listed in '{shard}', which does not hold it"
            yield Diagnostic("DI355", message, file=INDEX_NAME, help="index and shards must agree")
    for name, stored in found.items():
        listed = index.get(name)
        if listed is None:
            message = f"tensor '{name}' lies in this shard and the index does not list it"
            yield Diagnostic("DI355", message, file=stored.shard, help="index and shards must agree")
        elif listed != stored.shard:
            message = f"tensor '{name}' is listed in '{listed}' and lies in '{stored.shard}'"
            yield Diagnostic("DI355", message, file=INDEX_NAME, help="index and shards must agree")


def _tensor_faults(
    expected: Mapping[str, TensorSpec], index: Mapping[str, str], found: Mapping[str, StoredTensor]
) -> Iterator[Diagnostic]:
    for name, spec in expected.items():
        wanted = f"{spec.dtype} {list(spec.shape)}"
        stored = found.get(name)
        if stored is None:
            place = f"shard '{index[name]}' does not hold it" if name in index else "the index does not list it"
            message = f"tensor '{name}' is missing: expected {wanted}, {place}"
            yield Diagnostic("DI354", message, file=index.get(name, INDEX_NAME), help="use the engine's checkpoint")
        elif stored.spec.shape != spec.shape:
            message = f"tensor '{name}' has shape {list(stored.spec.shape)}, expected {wanted}"
            yield Diagnostic("DI357", message, file=stored.shard, help="use the engine's checkpoint")
        elif stored.spec.dtype != spec.dtype:
            message = f"tensor '{name}' has type {stored.spec.dtype}, expected {wanted}"
            yield Diagnostic("DI358", message, file=stored.shard, help="use the engine's checkpoint")
    for name, stored in found.items():
        if name not in expected and not name.startswith(SKIPPED_PREFIXES):
            message = f"tensor '{name}' {stored.spec.dtype} {list(stored.spec.shape)} is not part of the engine's model"
            yield Diagnostic("DI355", message, file=stored.shard, help="use the engine's checkpoint")
