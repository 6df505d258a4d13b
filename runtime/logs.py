"""Logging of the package: one handler on standard error, unless the program has set up logging itself."""

from __future__ import annotations

import logging
import os

from deepinfer_gen.diagnostics import Diagnostic, InputError

LEVEL_VARIABLE = "DEEPINFER_LOG_LEVEL"
_VARIABLES = {LEVEL_VARIABLE, "DEEPINFER_CACHE_DIR"}


def configure_logging() -> None:
    """Show the package's messages at ``DEEPINFER_LOG_LEVEL`` (default INFO). Called more than once it does nothing.

    A ``DEEPINFER_`` variable that nothing reads gets a warning: everything else is set in the spec.
    """
    root = logging.getLogger("deepinfer_gen")
    if root.handlers or logging.getLogger().handlers:
        return
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise InputError(
            Diagnostic(
                "DI301",
                f"{LEVEL_VARIABLE} is '{level}', which is no log level",
                help=f"use one of {', '.join(logging.getLevelNamesMapping())}",
            )
        )
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(module)s] %(message)s", "%m-%d %H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    for name in sorted(os.environ):
        if name.startswith("DEEPINFER_") and name not in _VARIABLES:
            root.warning("the environment variable %s is not known; known are %s", name, ", ".join(sorted(_VARIABLES)))
