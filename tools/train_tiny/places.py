"""The folders of the repository that the commands read and write."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRESET = ROOT / "specs" / "models" / "tiny-v41-code"
WORK = ROOT / "build" / "train_tiny"
