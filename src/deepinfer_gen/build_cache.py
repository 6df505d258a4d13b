"""The content-addressed cache of built engines, shared by the builder and the loader.

``engines/<key>/`` holds ``engine.so`` and ``entry.json`` and is complete or absent. The key names everything that
decides the bytes of the engine. A loader knows neither compiler nor flags, so ``index/<folder key>.json`` leads from
what a generated folder and this Python need to the last engine built for them. Each file carries or is covered by a
digest.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepinfer_gen.canonical import digest_bytes, digest_json, json_text, parse_sealed, sealed
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.durable import sync, write_file, write_tree
from deepinfer_gen.locks import exclusive

ENGINE = "engine.so"
OBJECT = "object.o"
ENTRY = "entry.json"
CACHE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """``entry.json``: what one built engine is, by digests, and the compiler that made it."""

    key: str
    name: str
    engine_sha256: str
    files_digest: str
    plan_digest: str
    sources_digest: str
    python_abi: str
    compiler: str
    schema: int


@dataclass(frozen=True, slots=True)
class CachedEngine:
    """A verified cache entry; ``library`` is the path of its ``engine.so``."""

    library: Path
    entry: Entry


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that ``clean`` can delete: an engine, an object file or leftovers, with its size in bytes."""

    kind: str
    name: str
    path: Path
    size: int


class DamagedEntryError(Exception):
    """A cache entry does not hold what it says; ``path`` is the file at fault."""

    def __init__(self, path: Path, message: str) -> None:
        self.path = path
        super().__init__(message)


def python_abi() -> str:
    """The tag of extension modules of this Python, such as ``cpython-311-x86_64-linux-gnu``."""
    return str(sysconfig.get_config_var("SOABI"))


def cache_root() -> Path:
    """``$DEEPINFER_CACHE_DIR``, or ``deepinfer-gen`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; always absolute.

    Raises ``InputError`` (DI213) when none of them says where that is.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen := os.environ.get("DEEPINFER_CACHE_DIR"):
            return Path(chosen).absolute()
        return (Path(base) if base else Path.home() / ".cache").absolute() / "deepinfer-gen"
    except (RuntimeError, OSError) as fault:  # no home folder; a relative path below a working folder that is gone
        message = f"the build cache has no place: {fault}"
        raise InputError(Diagnostic("DI213", message, help="set DEEPINFER_CACHE_DIR to an absolute path")) from None


def folder_key(files_digest: str, sources_digest: str) -> str:
    """What a loader knows about the engine that it needs: the folder, the engine sources and its own Python ABI."""
    return digest_json([CACHE_SCHEMA, files_digest, sources_digest, python_abi()])


class BuildCache:
    """The cache below ``root``; all methods are safe with any number of processes at work in it."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_root()

    def find(self, files_digest: str, sources_digest: str) -> CachedEngine | None:
        """The engine last built for a folder, verified; None if there is none. Raises ``DamagedEntryError``."""
        index = self._index(folder_key(files_digest, sources_digest))
        if not index.is_file():
            return None
        key = _sealed_content(index).get("key")
        engine = self.get(key) if isinstance(key, str) else None
        if engine and (engine.entry.files_digest, engine.entry.sources_digest) != (files_digest, sources_digest):
            raise DamagedEntryError(index, "leads to an engine of another folder")
        return engine

    def get(self, key: str) -> CachedEngine | None:
        """The engine stored under ``key``, its bytes verified; None if absent. Raises ``DamagedEntryError``."""
        folder = self.root / "engines" / key
        if not folder.is_dir():
            return None
        try:
            entry = Entry(**{k: v for k, v in _sealed_content(folder / ENTRY).items() if k != "digest"})
        except TypeError as fault:
            raise DamagedEntryError(folder / ENTRY, "does not have the keys of a cache entry") from fault
        if entry.schema != CACHE_SCHEMA or entry.key != key:
            raise DamagedEntryError(folder / ENTRY, "belongs to another cache entry")
        library = folder / ENGINE
        if not library.is_file():
            raise DamagedEntryError(library, "is missing")
        if digest_bytes(library.read_bytes()) != entry.engine_sha256:
            raise DamagedEntryError(library, "differs from the digest in its entry.json")
        return CachedEngine(library, entry)

    def publish(self, entry: Entry, library: Path) -> CachedEngine:
        """Store ``library`` under ``entry.key``, in one rename, and point the index at it. Needs ``building(key)``."""
        fresh = library.parent / f"{entry.key}.publish"
        write_tree(fresh, {ENTRY: json_text(sealed(asdict(entry))).encode(), ENGINE: library.read_bytes()})
        (fresh / ENGINE).chmod(0o755)
        target = self.root / "engines" / entry.key
        _move_in(fresh, target)
        self.point(entry)
        return CachedEngine(target / ENGINE, entry)

    def point(self, entry: Entry) -> None:
        """Make ``entry`` the engine that ``find`` gives for its folder."""
        index = self._index(folder_key(entry.files_digest, entry.sources_digest))
        content = json_text(sealed({"schema": CACHE_SCHEMA, "key": entry.key})).encode()
        if not index.is_file() or index.read_bytes() != content:
            index.parent.mkdir(parents=True, exist_ok=True)
            write_file(index, content)

    def object_file(self, key: str) -> Path | None:
        """A cached object file, or None if absent or damaged (it is then compiled again)."""
        folder = self.root / "objects" / key
        path = folder / OBJECT
        if not path.is_file() or not (folder / ENTRY).is_file():
            return None
        try:
            content = _sealed_content(folder / ENTRY)
        except DamagedEntryError:
            return None
        return path if content.get("sha256") == digest_bytes(path.read_bytes()) else None

    def publish_object(self, key: str, name: str, compiled: Path) -> Path:
        """Store an object file under ``key``. Needs ``building(key)``."""
        content = compiled.read_bytes()
        entry = sealed({"schema": CACHE_SCHEMA, "name": name, "sha256": digest_bytes(content)})
        fresh = compiled.parent / f"{key}.publish"
        write_tree(fresh, {ENTRY: json_text(entry).encode(), OBJECT: content})
        target = self.root / "objects" / key
        _move_in(fresh, target)
        return target / OBJECT

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """Hold the lock of ``key`` and give an empty work folder; a dead builder's work folder is removed first."""
        for folder in ("locks", "work"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        with exclusive(self.root / "locks" / f"{key}.lock"):
            for leftover in (self.root / "work").glob(f"{key}.*"):
                shutil.rmtree(leftover)
            work = self.root / "work" / f"{key}.{uuid.uuid4().hex}"
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work)

    def log_path(self, key: str) -> Path:
        """Where the compiler's output for ``key`` is kept."""
        path = self.root / "logs" / f"{key}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def items(self) -> tuple[Item, ...]:
        """Everything in the cache that ``remove`` can delete, engines first."""
        found = [Item("engine", _name_of(p), p, _size(p)) for p in _children(self.root / "engines")]
        found += [Item("object", _name_of(p), p, _size(p)) for p in _children(self.root / "objects")]
        leftovers = [*_children(self.root / "work"), *(self.root / "index").glob("*.tmp")]
        found += [Item("leftover", p.name, p, _size(p)) for p in leftovers]
        found += [Item("log", p.name, p, _size(p)) for p in _children(self.root / "logs")]
        return tuple(found)

    def remove(self, item: Item) -> None:
        """Delete one item, and the index entries that led to it. Nobody may be building it: its lock is taken."""
        with exclusive(self._lock_of(item)):
            if item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
            if item.kind == "engine":
                for index in _children(self.root / "index"):
                    if f'"{item.path.name}"' in index.read_text(errors="replace"):
                        index.unlink()

    def _lock_of(self, item: Item) -> Path:
        (self.root / "locks").mkdir(parents=True, exist_ok=True)
        return self.root / "locks" / f"{item.path.name.split('.')[0]}.lock"

    def _index(self, key: str) -> Path:
        return self.root / "index" / f"{key}.json"


def _move_in(fresh: Path, target: Path) -> None:
    """Put the flushed folder ``fresh`` in the place of ``target`` in one rename, and flush that too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    fresh.rename(target)
    sync(target.parent)


def _sealed_content(path: Path) -> Mapping[str, Any]:
    try:
        return parse_sealed(path.read_bytes())
    except FileNotFoundError as fault:
        raise DamagedEntryError(path, "is missing") from fault
    except ValueError as fault:
        raise DamagedEntryError(path, str(fault)) from fault


def _children(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.iterdir())) if folder.is_dir() else ()


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file())


def _name_of(folder: Path) -> str:
    """The name that an entry gives itself; a damaged one is listed by its key."""
    try:
        return str(_sealed_content(folder / ENTRY).get("name", folder.name))
    except DamagedEntryError:
        return folder.name
