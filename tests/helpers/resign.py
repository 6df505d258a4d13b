"""Re-signing: change a generated folder on purpose and make its manifest true again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from deepinfer_gen.manifest import MANIFEST, manifest_text, parse_manifest, read_folder

Edit = Callable[[str], str]


def replace_once(old: str, new: str) -> Edit:
    """An edit that replaces the only occurrence of ``old``."""

    def edit(text: str) -> str:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        return text.replace(old, new)

    return edit


def resign(folder: Path, edits: Mapping[str, Edit]) -> None:
    """Apply ``edits`` (file name to edit) to a verified folder and write its manifest anew."""
    contents = dict(read_folder(folder).contents)
    for name, edit in edits.items():
        contents[name] = edit(contents[name].decode()).encode()
        (folder / name).write_bytes(contents[name])
    _, raw = parse_manifest((folder / MANIFEST).read_bytes())
    header = {k: v for k, v in raw.items() if k not in ("files", "files_digest", "digest")}
    (folder / MANIFEST).write_text(manifest_text(header, contents))
