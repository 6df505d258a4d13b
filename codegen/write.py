"""Writing a generated folder: whole or not at all, and never over a person's work.

The folder is written beside its target, flushed and renamed. The parent directory is locked meanwhile, so writers take
turns; what an interrupted writer left behind is put right by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepinfer_gen.canonical import digest_bytes
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.durable import exchange, sync, write_tree
from deepinfer_gen.locks import exclusive
from deepinfer_gen.manifest import MANIFEST, list_files, parse_manifest


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: ``changed`` names the files written or removed; empty means nothing was touched."""

    path: Path
    changed: tuple[str, ...]


def write_folder(contents: Mapping[str, str], target: Path, *, force: bool = False) -> Written:
    """Make ``target`` hold exactly ``contents`` (file name to text, the manifest included).

    Raises ``InputError`` when ``target`` is not a generated folder (DI150), or when it holds files that a person
    changed or added (DI151) and ``force`` is not given. A folder that is right already is not touched.
    """
    encoded = {name: text.encode() for name, text in contents.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent):
        aside = target.with_name(f".{target.name}.old")
        fresh = target.with_name(f".{target.name}.new")
        _recover(target, aside, fresh)
        _refuse_foreign(target)
        present = {name: (target / name).read_bytes() for name in list_files(target) if (target / name).is_file()}
        changed = tuple(sorted(n for n in {*present, *encoded} if present.get(n) != encoded.get(n)))
        if not changed and target.is_dir():
            return Written(target, ())
        if not force:
            _refuse_edited(target, present, encoded)
        write_tree(fresh, encoded)
        _swap(target, aside, fresh)
    return Written(target, changed)


def _recover(target: Path, aside: Path, fresh: Path) -> None:
    """Undo a write that stopped half-way. The lock is held, so nobody else is at work here."""
    if aside.exists() and not target.exists():
        aside.rename(target)
    for leftover in (aside, fresh):
        if leftover.exists():
            shutil.rmtree(leftover)


def _swap(target: Path, aside: Path, fresh: Path) -> None:
    """Put ``fresh`` in the place of ``target``, in one step where the file system can exchange two names.

    Elsewhere a fault or an interrupt between the two renames puts the old folder back.
    """
    if target.exists() and exchange(fresh, target):
        sync(target.parent)
        shutil.rmtree(fresh)
        return
    if target.exists():
        target.rename(aside)
    try:
        fresh.rename(target)
    except BaseException:
        if aside.exists():
            aside.rename(target)
        raise
    sync(target.parent)
    if aside.exists():
        shutil.rmtree(aside)


def _refuse_foreign(target: Path) -> None:
    """Refuse anything but a real directory that is empty or holds a manifest."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        what = "is a symbolic link" if target.is_symlink() else "is a file"
    elif target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        what = "holds files but no manifest.json, so it is not a generated folder"
    else:
        return
    remedy = "choose another output parent with -o, or move it away"
    raise InputError(Diagnostic("DI150", f"{target.name} {what}; it is left as it is", str(target), help=remedy))


def _refuse_edited(target: Path, present: Mapping[str, bytes], new: Mapping[str, bytes]) -> None:
    """Refuse to lose a person's work: a file that is not as its manifest says and not as it would be written."""
    if MANIFEST not in present:
        return
    faults = []
    try:
        listed = parse_manifest(present[MANIFEST])[0].files
    except ValueError as fault:
        listed = {}
        faults.append((MANIFEST, f"{fault}, so hand edits cannot be told apart"))
    for name in sorted(set(list_files(target)) - {MANIFEST}):
        if name in new and present.get(name) == new[name]:
            continue
        if name not in listed:
            faults.append((name, "is not listed in manifest.json: a person put it there"))
        elif name not in present or digest_bytes(present[name]) != listed[name]:
            faults.append((name, "was changed by hand since it was generated"))
    if faults:
        remedy = "keep a copy, then run again with --force to overwrite the folder"
        raise InputError(Diagnostic("DI151", f"{n} {what}", str(target / n), help=remedy) for n, what in faults)
