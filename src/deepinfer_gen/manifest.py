"""``manifest.json``: what a generated folder consists of, and the check that a folder still is what it says.

Writer and loader share this module. Reading a folder returns the verified bytes, so that what is used later is what
was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deepinfer_gen.canonical import digest_bytes, digest_table, json_text, parse_sealed, sealed
from deepinfer_gen.diagnostics import Diagnostic, InputError

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 1
NOT_COMPILED = frozenset({"plan.json", "PLAN.md", MANIFEST})
"""Files that carry provenance; a moved spec line changes them and must rebuild nothing."""

_HEADER = {"schema": int, "stamp": list, "tool_version": str, "name": str, "spec_file": str, "spec_digest": str,
           "plan_digest": str, "schema_digest": str, "standalone": bool, "templates": dict, "files": dict,
           "files_digest": str}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parsed ``manifest.json``; ``files`` maps each file name of the folder to the sha256 of its bytes."""

    name: str
    spec_file: str
    spec_digest: str
    plan_digest: str
    files_digest: str
    standalone: bool
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GeneratedFolder:
    """A verified folder: its manifest and the bytes of every listed file."""

    path: Path
    manifest: Manifest
    contents: Mapping[str, bytes]

    @property
    def regenerate(self) -> str:
        """The command that writes the folder anew."""
        return regenerate_command(self.path, self.manifest.spec_file, standalone=self.manifest.standalone)

    def text(self, name: str) -> str:
        """The text of one file; a folder without it is refused as incomplete."""
        if name not in self.contents:
            raise InputError(_fault(self.path, name, "is not part of the folder", self.regenerate))
        return self.contents[name].decode()


def files_digest(digests: Mapping[str, str]) -> str:
    """The digest that the built extension carries: over all files that take part in a build or are read at run time."""
    return digest_table({name: digest for name, digest in digests.items() if name not in NOT_COMPILED})


def regenerate_command(folder: Path, spec_file: str, *, standalone: bool) -> str:
    """The command that writes ``folder`` anew, whatever is in it."""
    return f"deepinfer-gen {spec_file} -o {folder.parent}{' --standalone' if standalone else ''} --force"


def manifest_text(header: Mapping[str, Any], contents: Mapping[str, bytes]) -> str:
    """The bytes of ``manifest.json`` for ``contents`` (all files but the manifest itself), as text.

    ``header`` gives every key but ``files``, ``files_digest`` and ``digest``.
    """
    digests = {name: digest_bytes(content) for name, content in contents.items()}
    return json_text(sealed({**header, "files": digests, "files_digest": files_digest(digests)}))


def parse_manifest(text: bytes) -> tuple[Manifest, dict[str, Any]]:
    """The manifest and its raw content; ``ValueError`` says what is wrong with it."""
    content = parse_sealed(text)
    for key, kind in _HEADER.items():
        if not isinstance(content.get(key), kind):
            raise ValueError(f"has no valid '{key}'")
    if content["schema"] != MANIFEST_SCHEMA:
        raise ValueError(f"has schema {content['schema']}; this version reads schema {MANIFEST_SCHEMA}")
    if files_digest(content["files"]) != content["files_digest"]:
        raise ValueError("lists files that differ from its files_digest")
    names = ("name", "spec_file", "spec_digest", "plan_digest", "files_digest", "standalone")
    return Manifest(**{k: content[k] for k in names}, files=MappingProxyType(content["files"])), content


def list_files(folder: Path) -> tuple[str, ...]:
    """Everything below ``folder`` that a manifest must list, relative with ``/``, sorted.

    Links count as files whatever they point to, and so do empty folders.
    """
    found = (p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir() or not any(p.iterdir()))
    return tuple(sorted(p.relative_to(folder).as_posix() for p in found))


def read_folder(folder: Path) -> GeneratedFolder:
    """Read and verify a generated folder.

    Raises ``InputError`` with one diagnostic per fault: no folder, no or damaged manifest (DI200), a listed file that
    is missing or differs, a file that is not listed (DI201).
    """
    if not (folder / MANIFEST).is_file():
        what = "is not a generated engine folder: it has no manifest.json" if folder.is_dir() else "does not exist"
        remedy = "name a folder that 'deepinfer-gen SPEC.yaml' wrote, such as generated/tiny-cpu"
        raise InputError(Diagnostic("DI200", f"engine folder {what}", str(folder), help=remedy))
    try:
        manifest, _ = parse_manifest((folder / MANIFEST).read_bytes())
    except ValueError as fault:
        command = regenerate_command(folder, "SPEC.yaml", standalone=False)
        raise InputError(_fault(folder, MANIFEST, str(fault), command, "DI200")) from fault
    command = regenerate_command(folder, manifest.spec_file, standalone=manifest.standalone)
    contents: dict[str, bytes] = {}
    faults: list[Diagnostic] = []
    present = set(list_files(folder)) - {MANIFEST}
    for name, digest in sorted(manifest.files.items()):
        if name not in present:
            faults.append(_fault(folder, name, "is missing", command))
            continue
        contents[name] = (folder / name).read_bytes()
        if digest_bytes(contents[name]) != digest:
            faults.append(_fault(folder, name, "differs from manifest.json: it was changed by hand", command))
    for name in sorted(present - set(manifest.files)):
        faults.append(_fault(folder, name, "is not listed in manifest.json", command))
    if faults:
        raise InputError(faults)
    return GeneratedFolder(folder, manifest, MappingProxyType(contents))


def _fault(folder: Path, name: str, message: str, command: str, code: str = "DI201") -> Diagnostic:
    return Diagnostic(code, f"{name} {message}", str(folder / name), help=f"write the folder anew: {command}")
