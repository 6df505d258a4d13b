"""Numeric literals of 16 and more that the runtime may hold, each with its reason: facts of number formats and of
algorithms, never of a model, a layout or a deployment. A literal that is not used any more fails the suite.
"""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED: Mapping[str, Mapping[float, str]] = {}
"""File (relative to ``runtime/``) to literal to reason."""
