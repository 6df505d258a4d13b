"""Diagnostics of ``derive``: a rule over derived numbers is broken; the place is the spec line that decides."""

from __future__ import annotations

import re

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.resolved import Resolved

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?P<column>\d+)(: .*)?")


def fault(resolved: Resolved, keys: tuple[str, ...], code: str, message: str, remedy: str) -> InputError:
    """An ``InputError`` at the line of the first of ``keys`` that the spec wrote, or at the file if it wrote none."""
    sources = (resolved.settings[key].source for key in keys if key in resolved.settings)
    place = next(filter(None, map(_PLACE.fullmatch, sources)), None)
    if place is None:
        return InputError(Diagnostic(code, message, file=resolved.spec_file, help=remedy))
    return InputError(Diagnostic(code, message, place["file"], int(place["line"]), int(place["column"]), help=remedy))
