"""Scheduler engines compiled while tests run that need none: a compiler is a process of its own."""

from __future__ import annotations

import threading
from pathlib import Path

from scheduler_configs import SPECS, build_library, engine_files

AHEAD = ("tight", "varlen_gain", "completion_varlen", "prompt_cp", "varlen", "padded", "completion", "prompt")
"""Engines of the table that the developer suite uses, in any of its folders."""


def start(parent: Path) -> threading.Thread:
    """Begin to build them below ``parent`` into the shared cache; whoever needs one meanwhile waits for its lock."""
    thread = threading.Thread(target=_build, args=(parent,), name="engines-ahead", daemon=True)
    thread.start()
    return thread


def _build(parent: Path) -> None:
    for name in AHEAD:
        build_library(name, engine_files(SPECS[name], name), parent)
