"""Diagnostics of ``derive``: a rule over derived numbers is broken; the place is the spec line that decides."""

from __future__ import annotations

import re

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.resolved import Resolved

_PLACE = re.compile(r"(?P<file>.+):(?P<line>\d+):(?P<column>\d+)")


def fault(resolved: Resolved, key: str, code: str, message: str, remedy: str) -> InputError:
    """An ``InputError`` placed at the spec line that wrote ``key``, or at the spec file if it is a default."""
    place = _PLACE.fullmatch(resolved.settings[key].source) if key in resolved.settings else None
    if place is None:
        return InputError(Diagnostic(code, message, file=resolved.spec_file, help=remedy))
    return InputError(Diagnostic(code, message, place["file"], int(place["line"]), int(place["column"]), help=remedy))
