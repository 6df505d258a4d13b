"""Paths that a spec may name: relative, below the spec's folder, and no way out of it."""

from __future__ import annotations

import posixpath
from pathlib import Path, PureWindowsPath

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.specs.yaml_tree import KeyPlace


def path_below(folder: Path, written: str, key: str, at: KeyPlace) -> Path:
    """The path ``written`` under ``key``, relative to ``folder``.

    Raises ``InputError`` (DI018) for an absolute path, one with ``..`` or a backslash, one that cannot be a path, or
    one that a symbolic link leads out of ``folder``.
    """
    remedy = "name a file below the spec's folder, with forward slashes"
    if not written.isprintable() or len(written) > 1024:
        raise InputError(at.error("DI018", f"{key} is not a valid path", remedy))
    parts = written.split("/")
    if written.startswith(("/", "~")) or "\\" in written or ".." in parts or PureWindowsPath(written).drive:
        raise InputError(at.error("DI018", f"{key} is '{written}', which leads out of the spec's folder", remedy))
    path = folder / written
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        message = f"{key} is '{written}', which a symbolic link leads out of the spec's folder"
        raise InputError(at.error("DI018", message, remedy))
    return path


def shown_below(spec_shown: str, written: str) -> str:
    """How diagnostics name the file ``written`` in the spec that the user typed as ``spec_shown``."""
    return posixpath.join(posixpath.dirname(spec_shown), written)
