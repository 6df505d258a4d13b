"""The record formats of cached rows: what a value and a scale take, and how many values share a scale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """A row of n values takes n * ``bits`` / 8 bytes for the values and n / ``group`` * ``scale_bytes`` for scales."""

    bits: int
    group: int
    scale_bytes: int
    why: str


CACHE_FORMATS = {
    "nvfp4_g16": CacheFormat(4, 16, 1, "e2m1 values, one e4m3 scale for 16 of them"),
    "mxfp4_g32": CacheFormat(4, 32, 1, "e2m1 values, one power-of-two scale byte for 32 of them"),
    "mxfp8_g32": CacheFormat(8, 32, 1, "e4m3 values, one power-of-two scale byte for 32 of them"),
    "bf16": CacheFormat(16, 1, 0, "two bytes a value, no scale"),
    "fp32": CacheFormat(32, 1, 0, "four bytes a value, no scale"),
}
