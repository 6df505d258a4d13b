"""The small text files of a checkpoint folder, read strictly: what cannot be read is bad input, not a crash."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from deepinfer_gen.diagnostics import Diagnostic, InputError


def read_text(path: Path, what: str, code: str) -> str:
    """UTF-8 text; raises ``InputError`` with ``code``."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise _fault(path, f"{what} cannot be read: {fault}", code) from fault


def read_object(path: Path, what: str, code: str, *, exact: bool = False) -> dict[str, Any]:
    """A JSON object, decimals as fractions when ``exact``; raises ``InputError`` with ``code``."""
    text = read_text(path, what, code)
    try:
        content = json.loads(text, parse_float=Fraction if exact else None)
    except RecursionError as fault:
        raise _fault(path, f"{what} is nested too deeply", code) from fault
    except ValueError as fault:
        raise _fault(path, f"{what} is not JSON: {fault}", code) from fault
    if not isinstance(content, dict):
        raise _fault(path, f"{what} is no JSON object", code)
    return content


def _fault(path: Path, message: str, code: str) -> InputError:
    return InputError(Diagnostic(code, message, file=str(path), help="download the file again"))
