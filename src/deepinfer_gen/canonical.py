"""Canonical JSON: the one form in which values are hashed."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Any

from deepinfer_gen.formula import Value


def plain(value: Value) -> Any:
    """The JSON form of a value: tuples become lists, fractions the text ``6/5``."""
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Fraction) else value


def digest_json(content: Any) -> str:
    """sha256 of the canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
