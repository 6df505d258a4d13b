"""A folder of safetensors shards: its index, and shards mapped into memory from which tensors are copied."""

from __future__ import annotations

import logging
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.consistency import short
from deepinfer_gen.runtime.weights_header import AGAIN, MalformedError, StoredTensor, parse_header, strict_object

logger = logging.getLogger(__name__)

INDEX_NAME = "model.safetensors.index.json"
# The same bound as the safetensors library: a longer header is a corrupt length.
_MAX_HEADER_BYTES = 100_000_000
# A copy gives its mapped pages back this often, so that they never add up to a tensor.
_PIECE_BYTES = 1 << 22
# One fault may map the cached neighbours too, as far as the page cache holds them in one piece: a huge page at most.
_WINDOW_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Index:
    """Tensor name to shard file name, and the bytes of all tensors as the index states them, if it does."""

    shard_of: Mapping[str, str]
    total_size: int | None

    @property
    def shards(self) -> dict[str, str]:
        """Every shard, and the first tensor that should lie in it."""
        return {shard: name for name, shard in reversed(list(self.shard_of.items()))}

    def compare_total(self, found: int) -> None:
        """Warn where the shards hold another number of bytes.

        Tools disagree on what they count there, and every tensor is checked by itself, so this refuses nothing.
        """
        if self.total_size not in (None, found):
            logger.warning("%s states total_size %d; its shards hold %d bytes", INDEX_NAME, self.total_size, found)


def read_index(folder: Path) -> Index:
    """The index of ``folder``. Every shard that it names is a plain file name.

    Raises ``InputError``: DI350 (no index, or unreadable), DI351 (a name that is no file name inside the folder).
    """
    try:
        descriptor = _open(folder / INDEX_NAME)
        with open(descriptor, "rb") as file:
            raw = file.read(_MAX_HEADER_BYTES + 1)
        if len(raw) > _MAX_HEADER_BYTES:
            raise MalformedError(f"it is longer than {_MAX_HEADER_BYTES} bytes")
        content = strict_object(raw)
    except FileNotFoundError as fault:
        message = f"'{folder}' has no {INDEX_NAME}"
        raise InputError(Diagnostic("DI350", message, file=INDEX_NAME, help="name a checkpoint folder")) from fault
    except (OSError, MalformedError) as fault:
        raise _unreadable(str(fault)) from fault
    mapping, metadata = content.get("weight_map"), content.get("metadata")
    if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
        raise _unreadable(f"weight_map is {short(mapping)}, expected an object of file names")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    index = Index(mapping, total if type(total) is int else None)
    faults = []
    for shard, name in sorted(index.shards.items()):
        if Path(shard).name != shard or shard in {"", ".", ".."} or "\\" in shard or not shard.isprintable():
            message = f"tensor {short(name)} lies in {short(shard)}, which is not a file name inside the folder"
            faults.append(Diagnostic("DI351", message, file=INDEX_NAME, help="a shard lies beside its index"))
    if faults:
        raise InputError(faults)
    return index


class Shard:
    """One shard, mapped privately for as long as this object lives; ``tensors`` are those of its checked header.

    The header is read from the same open file that is mapped, so that what was checked is what is read, even if another
    file takes the name. A link is followed, wherever it leads: shared caches of checkpoints are made of links.
    """

    def __init__(self, folder: Path, name: str, wanted_by: str) -> None:
        """Open, check and map; raises ``InputError``: DI352 (absent, no regular file) and those of ``parse_header``.

        ``wanted_by`` names a tensor that the index promises here.
        """
        self.name = name
        try:
            descriptor = _open(folder / name)
        except FileNotFoundError as fault:
            message = f"shard '{name}' is absent; it should hold tensor {short(wanted_by)} among others"
            raise InputError(Diagnostic("DI352", message, file=INDEX_NAME, help="download the shard")) from fault
        except OSError as fault:
            message = f"shard '{name}' cannot be opened: {fault.strerror or fault}"
            raise InputError(Diagnostic("DI352", message, file=INDEX_NAME, help=AGAIN)) from fault
        try:
            # Nothing is read ahead, by the mapping neither: what follows may be experts of other ranks.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            size = os.fstat(descriptor).st_size
            prefix = os.pread(descriptor, 8, 0)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
                message = f"the file has {size} bytes and a header length of {length}: truncated"
                raise InputError(Diagnostic("DI353", message, file=name, help=AGAIN))
            self.tensors = parse_header(name, os.pread(descriptor, length, 8), 8 + length, size)
            # Length 0 maps the file as it is now; Python holds a descriptor of its own beside the mapping.
            self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        except (OSError, ValueError) as fault:
            message = f"the file cannot be read: {fault}"
            raise InputError(Diagnostic("DI353", message, file=name, help=AGAIN)) from fault
        finally:
            os.close(descriptor)
        self._size = size
        self._check_size(len(self._map))

    def copy(self, stored: StoredTensor, target: memoryview) -> None:
        """Copy a tensor's bytes to ``target`` and give its mapped pages back.

        Raises ``InputError`` (DI401) where the file has another size than when it was checked.
        """
        self._check_size(self._map.size())
        with memoryview(self._map) as source:
            for start in range(stored.start, stored.stop, _PIECE_BYTES):
                stop = min(start + _PIECE_BYTES, stored.stop)
                page = start - start % mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, page, stop - page)
                target[start - stored.start : stop - stored.start] = source[start:stop]
                window = max(0, page - _WINDOW_BYTES)
                self._map.madvise(mmap.MADV_DONTNEED, window, stop + _WINDOW_BYTES - window)

    def _check_size(self, found: int) -> None:
        if found != self._size:
            message = f"the file had {self._size} bytes when it was checked and has {found} now"
            raise InputError(Diagnostic("DI401", message, file=self.name, help="leave the folder alone while it loads"))


def _open(path: Path) -> int:
    """Descriptor of a regular file; ``OSError`` for anything else. A pipe without a writer must not block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as fault:  # a name that no file system can hold
        raise FileNotFoundError(str(fault)) from fault
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no regular file")
    return descriptor


def _unreadable(message: str) -> InputError:
    message = f"the index cannot be read: {message}"
    return InputError(Diagnostic("DI350", message, file=INDEX_NAME, help="download the file again"))
