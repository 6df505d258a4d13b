"""Writing results to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def write_lines(lines: Iterable[str]) -> None:
    """Lines of text; characters that the terminal's encoding lacks become ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")


def write_json(content: Any) -> None:
    """One JSON document, sorted keys, two-space indent."""
    sys.stdout.write(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=True) + "\n")
