"""The weights of one checkpoint, checked in full before any is read, and handed out as stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from deepinfer_gen.checkpoint_table import TensorSpec
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights_check import check_tensors, open_shards
from deepinfer_gen.runtime.weights_files import Shard, read_index
from deepinfer_gen.runtime.weights_header import StoredTensor
from deepinfer_gen.runtime.weights_names import SKIPPED_PREFIXES, Demand, demand

# 8-bit floats, exponents and packed nibbles stay bytes.
_TORCH_TYPES = {
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
    "I8": torch.uint8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a checkpoint holds for one EP rank: tensors, and their bytes as stored.

    ``loaded`` are the rank's own, ``elsewhere`` the routed experts of other ranks, ``checked`` draft layers that are
    not used, ``skipped`` the vision tower. Headers of all are checked; only ``loaded`` are read.
    """

    shards: int
    loaded: int
    loaded_bytes: int
    elsewhere: int
    elsewhere_bytes: int
    checked: int
    checked_bytes: int
    skipped: int
    skipped_bytes: int


class TensorSource(Protocol):
    """Tensors of one EP rank by released name. A name that the rank does not hold is a ``KeyError``."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a dense FP8 weight that share one scale byte."""

    @property
    def report(self) -> LoadReport:
        """Counts and bytes of the checkpoint."""

    def spec(self, name: str) -> TensorSpec:
        """Stored type and shape."""

    def stored(self, name: str) -> Tensor:
        """The tensor in its stored type, owned by the caller; 8-bit floats and packed nibbles as uint8."""

    def stack(self, names: Sequence[str]) -> Tensor:
        """Tensors of equal type and shape as one, [len(names), ...], owned by the caller."""


class Weights:
    """A ``TensorSource`` over mapped shards: each tensor is copied once into its place, and its pages are given back.

    ``read_bytes`` counts what was copied so far.
    """

    def __init__(
        self,
        shards: Mapping[str, Shard],
        tensors: Mapping[str, StoredTensor],
        tile: tuple[int, int],
        report: LoadReport,
    ) -> None:
        self._shards, self._tensors, self.tile = shards, tensors, tile
        self.report = report
        self.read_bytes = 0

    def spec(self, name: str) -> TensorSpec:
        """Stored type and shape."""
        return self._tensors[name].spec

    def stored(self, name: str) -> Tensor:
        """The tensor in its stored type, owned by the caller; 8-bit floats and packed nibbles as uint8."""
        return self._read([name], self.spec(name).shape)

    def stack(self, names: Sequence[str]) -> Tensor:
        """Tensors of equal type and shape as one, [len(names), ...], owned by the caller."""
        return self._read(names, _stacked(self, names).shape)

    def _read(self, names: Sequence[str], shape: tuple[int, ...]) -> Tensor:
        tensors = [self._tensors[name] for name in names]
        size = tensors[0].stop - tensors[0].start
        place = torch.empty(size * len(tensors), dtype=torch.uint8)
        bytes_ = place.numpy().data
        for number, stored in enumerate(tensors):
            self._shards[stored.shard].copy(stored, bytes_[number * size : (number + 1) * size])
        self.read_bytes += place.numel()
        return place.view(_TORCH_TYPES[tensors[0].spec.dtype]).view(shape)


class MetaWeights:
    """A ``TensorSource`` without a file: the tensors that the plan demands, on the meta device."""

    def __init__(self, plan: ModelPlan, constants: Constants, ep_rank: int = 0, ep_size: int = 1) -> None:
        wanted = demand(plan, constants, ep_rank, ep_size)
        self._specs = wanted.held
        self.tile = _tile(constants)
        self.report = _report(wanted, shards=0, skipped=())

    def spec(self, name: str) -> TensorSpec:
        """Stored type and shape."""
        return self._specs[name]

    def stored(self, name: str) -> Tensor:
        """An empty tensor of the stored type and shape."""
        return _empty(self.spec(name))

    def stack(self, names: Sequence[str]) -> Tensor:
        """An empty tensor [len(names), ...]."""
        return _empty(_stacked(self, names))


def load_weights(plan: ModelPlan, constants: Constants, folder: Path, ep_rank: int = 0, ep_size: int = 1) -> Weights:
    """Check every tensor of the checkpoint in ``folder`` against the plan, then open it for rank ``ep_rank``.

    Every rank checks the headers of all shards. ``InputError`` lists the faults, each naming the tensor, its shard,
    what is expected and what was found: missing, extra or duplicate tensors, wrong types or shapes, absent or truncated
    shards, an index that leaves the folder; DI400 for a group that the engine was not compiled for.
    """
    wanted = demand(plan, constants, ep_rank, ep_size)
    index = read_index(folder)
    shards = open_shards(folder, index)
    found = check_tensors(index, shards, wanted.all)
    index.compare_total(sum(t.spec.nbytes for t in found.values()))
    skipped = [t.spec for name, t in found.items() if name.startswith(SKIPPED_PREFIXES)]
    report = _report(wanted, shards=len(shards), skipped=skipped)
    return Weights(shards, {name: found[name] for name in wanted.held}, _tile(constants), report)


def _tile(constants: Constants) -> tuple[int, int]:
    return constants.weight_tile_rows, constants.weight_tile_columns


def _report(wanted: Demand, *, shards: int, skipped: Iterable[TensorSpec]) -> LoadReport:
    loaded, elsewhere, checked, left = (
        [spec.nbytes for spec in specs]
        for specs in (wanted.held.values(), wanted.elsewhere.values(), wanted.checked.values(), skipped)
    )
    return LoadReport(
        shards=shards,
        loaded=len(loaded),
        loaded_bytes=sum(loaded),
        elsewhere=len(elsewhere),
        elsewhere_bytes=sum(elsewhere),
        checked=len(checked),
        checked_bytes=sum(checked),
        skipped=len(left),
        skipped_bytes=sum(left),
    )


def _stacked(source: TensorSource, names: Sequence[str]) -> TensorSpec:
    """Type and shape of the tensors stacked; ``ValueError`` where they differ or there are none."""
    specs = {name: source.spec(name) for name in names}
    if len(set(specs.values())) != 1:
        raise ValueError(f"tensors of one type and shape can be stacked, these are {specs}")
    spec = specs[names[0]]
    return TensorSpec(spec.dtype, (len(names), *spec.shape))


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty(spec.shape, dtype=_TORCH_TYPES[spec.dtype], device="meta")
