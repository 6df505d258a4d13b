"""Numbers on the command line."""

from __future__ import annotations

import argparse


def positive(written: str) -> int:
    """An integer of at least 1."""
    return _at_least(1, written)


def not_negative(written: str) -> int:
    """An integer of at least 0."""
    return _at_least(0, written)


def _at_least(least: int, written: str) -> int:
    value = int(written)
    if value < least:
        raise argparse.ArgumentTypeError(f"{written} is less than {least}")
    return value
