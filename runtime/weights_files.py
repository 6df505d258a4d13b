"""Reading a folder of safetensors shards strictly: the index, every header, and tensors mapped from the files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.weights_names import TensorSpec

INDEX_NAME = "model.safetensors.index.json"
# Bytes per element; e8m0 and e4m3 are kept as bytes until they are decoded.
_ELEMENT_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8}
_TORCH_TYPES = {
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
    "I8": torch.uint8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
# The same bound as the safetensors library: a longer header is a corrupt length.
_MAX_HEADER_BYTES = 100_000_000
# What parsing JSON of another shape than expected raises.
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: shard file name, type, shape, and byte range in the file."""

    shard: str
    spec: TensorSpec
    start: int
    stop: int


class DuplicateKeyError(ValueError):
    """A JSON object names one key twice."""


def read_index(folder: Path) -> dict[str, str]:
    """Tensor name to shard file name; every shard is a plain name inside ``folder`` and exists."""
    path = folder / INDEX_NAME
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_unique)
        mapping = content["weight_map"]
        if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
            raise ValueError("weight_map is not an object of file names")
    except FileNotFoundError as error:
        raise _fault("DI350", f"'{folder}' has no {INDEX_NAME}", INDEX_NAME, "name a checkpoint folder") from error
    except (OSError, *_MALFORMED) as error:
        raise _fault("DI350", f"the index cannot be read: {error}", INDEX_NAME) from error
    faults = []
    for shard in sorted(set(mapping.values())):
        name = next(n for n, s in mapping.items() if s == shard)
        if Path(shard).name != shard or shard in {"", ".", ".."} or "\\" in shard or "\0" in shard:
            message = f"tensor '{name}' lies in {shard!r}, which is not a file name inside the folder"
            faults.append(Diagnostic("DI351", message, file=INDEX_NAME, help="a shard lies beside its index"))
        elif not (folder / shard).is_file():
            message = f"shard '{shard}' is absent; it should hold tensor '{name}' among others"
            faults.append(Diagnostic("DI352", message, file=INDEX_NAME, help="download the shard"))
    if faults:
        raise InputError(faults)
    return mapping


def read_header(folder: Path, shard: str) -> dict[str, StoredTensor]:
    """The tensors of one shard, with ranges checked against the file's size and the shapes."""
    path = folder / shard
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
            raise _fault("DI353", f"the file has {size} bytes and a header length of {length}: truncated", shard)
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        tensors = {name: _entry(shard, entry, 8 + length) for name, entry in header.items()}
    except DuplicateKeyError as error:
        raise _fault("DI356", f"the header names tensor {error} twice", shard) from error
    except _MALFORMED as error:
        raise _fault("DI353", f"the header cannot be read: {error}", shard) from error
    faults = list(_range_faults(shard, tensors, size))
    if faults:
        raise InputError(faults)
    return tensors


class MappedShards:
    """Memory-mapped shards; a tensor is a view of its file, kept as stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Tensor] = {}

    def tensor(self, stored: StoredTensor) -> Tensor:
        """The tensor in its stored type; 8-bit floats and packed integers as uint8."""
        if stored.shard not in self._files:
            path = self._folder / stored.shard
            mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
            self._files[stored.shard] = mapped
        raw = self._files[stored.shard][stored.start : stored.stop]
        dtype = _TORCH_TYPES[stored.spec.dtype]
        if stored.start % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(stored.spec.shape)


def _entry(shard: str, entry: dict[str, Any], base: int) -> StoredTensor:
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"shape {list(shape)} and range {[start, stop]} must be whole numbers from 0")
    return StoredTensor(shard, TensorSpec(str(entry["dtype"]), shape), base + start, base + stop)


def _range_faults(shard: str, tensors: dict[str, StoredTensor], size: int) -> Iterator[Diagnostic]:
    for name, stored in tensors.items():
        width = _ELEMENT_BYTES.get(stored.spec.dtype)
        needed = None if width is None else width * math.prod(stored.spec.shape)
        found = stored.stop - stored.start
        if stored.stop > size:
            message = f"tensor '{name}' ends at byte {stored.stop}, the file at {size}: truncated"
            yield Diagnostic("DI353", message, file=shard, help="download the shard again")
        elif found < 0 or (needed is not None and found != needed):
            shape = list(stored.spec.shape)
            message = f"tensor '{name}' {stored.spec.dtype} {shape} needs {needed} bytes, its range has {found}"
            yield Diagnostic("DI353", message, file=shard, help="download the shard again")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKeyError(repr(key))
        result[key] = value
    return result


def _fault(code: str, message: str, file: str, remedy: str = "download the file again") -> InputError:
    return InputError(Diagnostic(code, message, file=file, help=remedy))
