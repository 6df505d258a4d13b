"""Writing that survives a crash: bytes reach the disk before the rename that makes them visible."""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step, so that neither name is ever missing (Linux ``renameat2``).

    False, with nothing changed, where the C library or the file system cannot do it.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def write_tree(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Create ``folder``, which must not exist, with ``contents`` and flush files and directories to the disk."""
    folder.mkdir(parents=True)
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sync_tree(folder)


def write_file(path: Path, content: bytes) -> None:
    """Replace ``path`` atomically; readers see the old bytes or the new ones."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(content)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """Flush every file and directory below ``folder``, and ``folder`` itself."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Flush one file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
