"""Scheduler engines compiled while tests run that need none: a compiler is a process of its own."""

from __future__ import annotations

import threading
from pathlib import Path

from built import generate_tiny, shared_cache
from scheduler_configs import SPECS, build_library, engine_files

from deepinfer_gen.codegen.build import build_folder

AHEAD = ("tight", "varlen_gain", "completion_varlen", "prompt_cp", "varlen", "padded", "completion", "prompt")
"""Engines of the table that the developer suite uses, in any of its folders."""


def start(parent: Path) -> threading.Thread:
    """Begin to build them below ``parent`` into the shared cache, and the tiny engine behind them.

    Whoever needs one meanwhile waits for its lock.
    """
    # Generated here: later a test may have put something else in the writer's place.
    tiny = generate_tiny(parent)
    thread = threading.Thread(target=_build, args=(parent, tiny), name="engines-ahead", daemon=True)
    thread.start()
    return thread


def _build(parent: Path, tiny: Path) -> None:
    for name in AHEAD:
        build_library(name, engine_files(SPECS[name], name), parent)
    build_folder(tiny, shared_cache())
