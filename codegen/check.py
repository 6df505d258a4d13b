"""``check``: render in memory and compare with the folders. Only the tool version in manifest.json may differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer_gen.canonical import digest_bytes, json_text
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.render import render
from deepinfer_gen.manifest import MANIFEST, list_files, parse_manifest

_CONTEXT_LINES = 2
_MAX_DIFF_LINES = 60


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: ``file`` is the path as the user would name it, ``diff`` a unified diff or empty."""

    file: str
    reason: str
    diff: str = ""

    def as_text(self) -> str:
        """The report of this difference: one sentence, then the diff."""
        return f"{self.file}: {self.reason}\n{self.diff}".rstrip("\n")


def check(plans: Iterable[Plan], parent: Path) -> tuple[Drift, ...]:
    """Compare ``parent/<name>`` of every plan with what it renders to now; empty means no drift."""
    return tuple(drift for plan in plans for drift in _check_folder(plan, parent / plan.name))


def _check_folder(plan: Plan, folder: Path) -> Iterator[Drift]:
    if not folder.is_dir():
        yield Drift(str(folder), f"is missing; generate it with: deepinfer-gen {plan.spec_file} -o {folder.parent}")
        return
    names = list_files(folder)
    present = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    try:
        manifest, listed = parse_manifest(present[MANIFEST])
    except (KeyError, ValueError) as fault:
        reason = "is missing" if isinstance(fault, KeyError) else str(fault)
        yield Drift(str(folder / MANIFEST), reason)
        return
    expected = {n: text.encode() for n, text in render(plan, standalone=manifest.standalone).items()}
    for name in sorted({*expected, *names}):
        path = str(folder / name)
        if name not in names:
            yield Drift(path, "is missing")
        elif name not in expected:
            yield Drift(path, "is extra: this spec does not generate it")
        elif name == MANIFEST:
            _, wanted = parse_manifest(expected[name])
            ours, theirs = json_text(_comparable(wanted)).encode(), json_text(_comparable(listed)).encode()
            if ours != theirs:
                yield Drift(path, "is stale", _unified(theirs, ours, path))
        elif (found := present.get(name, b"")) != expected[name]:
            edited = digest_bytes(found) != manifest.files.get(name)
            reason = "was changed by hand" if edited else "is stale: the spec or the generator changed since"
            yield Drift(path, reason, _unified(found, expected[name], path))


def _comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without the tool version and the digest that covers it."""
    return {k: v for k, v in manifest.items() if k not in ("tool_version", "digest")}


def _unified(old: bytes, new: bytes, path: str) -> str:
    before, after = (content.decode(errors="replace").splitlines() for content in (old, new))
    lines = list(
        difflib.unified_diff(before, after, f"{path} (on disk)", f"{path} (generated)", n=_CONTEXT_LINES, lineterm="")
    )
    left_out = len(lines) - _MAX_DIFF_LINES
    if left_out > 0:
        lines[_MAX_DIFF_LINES:] = [f"... {left_out} more lines"]
    return "\n".join(lines)
