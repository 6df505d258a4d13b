"""The hand-written C++ of the engine: the headers under ``templates/engine`` and the bindings.

They come from the installed package, or from a standalone folder, which carries its own copy under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import deepinfer_gen.templates
from deepinfer_gen.canonical import digest_bytes, digest_table
from deepinfer_gen.manifest import GeneratedFolder

BINDINGS = "src/bindings.cpp"
_FOLDERS = ("engine/", "src/")


@cache
def installed_sources() -> Mapping[str, bytes]:
    """File name (``engine/core.hpp``, ``src/bindings.cpp``) to bytes, from the installed package."""
    root = Path(deepinfer_gen.templates.__path__[0])
    paths = [*root.glob("engine/*.hpp"), *root.glob("src/*.hpp"), *root.glob("src/*.cpp")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(paths)}


def sources_of(folder: GeneratedFolder) -> Mapping[str, bytes]:
    """The sources that ``folder`` is compiled with: its own copy if it is standalone, else the installed ones."""
    if not folder.manifest.standalone:
        return installed_sources()
    return {n: c for n, c in folder.contents.items() if n.startswith(_FOLDERS)}


def sources_digest(sources: Mapping[str, bytes]) -> str:
    """One digest over all engine sources."""
    return digest_table({name: digest_bytes(content) for name, content in sources.items()})
