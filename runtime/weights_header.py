"""The header of a safetensors shard and the index, parsed strictly: every fault is a diagnostic, whatever the bytes.

The format: eight bytes of header length, a JSON object from tensor name to type, shape and byte range, then the data,
which the ranges must fill without hole or overlap.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer_gen.checkpoint_table import ELEMENT_BYTES, TensorSpec
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.consistency import short

AGAIN = "download the shard again"
# What a 64-bit file offset can hold; larger numbers are refused before they are calculated with.
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: shard file name, type and shape, and byte range in the file."""

    shard: str
    spec: TensorSpec
    start: int
    stop: int


class MalformedError(ValueError):
    """Text that is no JSON object; the message is the rest of a sentence."""


class DuplicateKeyError(MalformedError):
    """A JSON object names one key twice."""


def strict_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in UTF-8 ``raw``; raises ``MalformedError`` for anything else."""
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as fault:
        raise MalformedError("it is nested too deeply") from fault
    except MalformedError:
        raise
    except ValueError as fault:  # not UTF-8, not JSON, or a number of thousands of digits
        raise MalformedError(str(fault)) from fault
    if not isinstance(content, dict):
        raise MalformedError(f"it is no JSON object: {short(content)}")
    return content


def parse_header(shard: str, raw: bytes, base: int, size: int) -> dict[str, StoredTensor]:
    """The tensors of a header whose data begin at byte ``base`` of a file of ``size`` bytes.

    Raises ``InputError``: DI353 (unreadable, a range that does not fit), DI356 (a name twice), DI402 (holes, overlaps),
    DI403 (an unknown type).
    """
    try:
        header = strict_object(raw)
    except DuplicateKeyError as fault:
        raise InputError(Diagnostic("DI356", f"the header {fault}", file=shard, help=AGAIN)) from fault
    except MalformedError as fault:
        raise InputError(Diagnostic("DI353", f"the header cannot be read: {fault}", file=shard, help=AGAIN)) from fault
    faults: list[Diagnostic] = []
    tensors: dict[str, StoredTensor] = {}
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        message = f"the header's __metadata__ is no object of texts: {short(metadata)}"
        faults.append(Diagnostic("DI353", message, file=shard, help=AGAIN))
    for name, entry in header.items():
        found = _entry(shard, name, entry, base, size)
        if isinstance(found, Diagnostic):
            faults.append(found)
        else:
            tensors[name] = found
    faults = faults or list(_layout_faults(shard, tensors, base, size))
    if faults:
        raise InputError(faults)
    return tensors


def _entry(shard: str, name: str, entry: Any, base: int, size: int) -> StoredTensor | Diagnostic:
    if not _well_formed(entry):
        message = f"tensor {short(name)} has the header entry {short(entry)}, expected dtype, shape and data_offsets"
        return Diagnostic("DI353", message, file=shard, help=AGAIN)
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in ELEMENT_BYTES:
        message = f"tensor {short(name)} has the type {short(dtype)}, expected one of {', '.join(ELEMENT_BYTES)}"
        return Diagnostic("DI403", message, file=shard, help="use the engine's checkpoint")
    spec = TensorSpec(dtype, shape)
    if base + stop > size:
        message = f"tensor {short(name)} ends at byte {base + stop}, the file at {size}: truncated"
        return Diagnostic("DI353", message, file=shard, help=AGAIN)
    # A product of large sizes is not needed in full: past the file's size it is wrong.
    needed = 0 if 0 in shape else ELEMENT_BYTES[dtype]
    for length in shape:
        needed *= length
        if needed > size:
            break
    if stop - start != needed:
        wanted = f"more than {size}" if needed > size else needed
        message = (
            f"tensor {short(name)} {dtype} {short(list(shape))} needs {wanted} bytes, its range has {stop - start}"
        )
        return Diagnostic("DI353", message, file=shard, help=AGAIN)
    return StoredTensor(shard, spec, base + start, base + stop)


def _well_formed(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    return (
        isinstance(dtype, str)
        and isinstance(shape, list)
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(n) is int and 0 <= n <= _LARGEST for n in (*shape, *offsets))
    )


def _layout_faults(shard: str, tensors: Mapping[str, StoredTensor], base: int, size: int) -> Iterator[Diagnostic]:
    """The ranges must fill the data without hole or overlap, as the format demands."""
    place, before = base, "the header"
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if stored.start != place:
            how = "a hole" if stored.start > place else "an overlap"
            message = f"tensor {short(name)} begins at byte {stored.start}, expected {place} behind {before}: {how}"
            yield Diagnostic("DI402", message, file=shard, help=AGAIN)
        place, before = max(place, stored.stop), short(name)
    if place != size:
        message = f"the data end at byte {place} behind {before}, the file at {size}: bytes that no tensor owns"
        yield Diagnostic("DI402", message, file=shard, help=AGAIN)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise DuplicateKeyError(f"names {short(twice)} twice")
    return result
