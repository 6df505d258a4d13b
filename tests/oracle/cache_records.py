"""The cache records once more, in loops over exact fractions: an expectation that shares no code with the product.

Written from the rules of ``docs/formats.md`` alone. A row is a list of float32 values as Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

E2M1 = tuple(Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12))
E4M3 = tuple(
    Fraction(m, 8) * Fraction(2) ** -6 if e == 0 else Fraction(8 + m, 8) * Fraction(2) ** (e - 7)
    for e in range(16)
    for m in range(8)
)[:127]
"""Non-negative values by code; code 127 is NaN."""

SHAPES = {"mxfp8_g32": (32, E4M3), "mxfp4_g32": (32, E2M1), "nvfp4_g16": (16, E2M1)}


def encode(row: Sequence[float], fmt: str) -> bytes:
    """One record: the data bytes of all groups, then their scale bytes."""
    size, table = SHAPES[fmt]
    codes: list[int] = []
    scales: list[int] = []
    for start in range(0, len(row), size):
        group = row[start : start + size]
        scale = _scale(group, fmt)
        scales.append(scale)
        factor = _scale_value(scale, fmt)
        codes += [0 if factor is None else _code(value, factor, table) for value in group]
    if table is E4M3:
        return bytes(codes) + bytes(scales)
    nibbles = [c & 7 | (c >> 7) << 3 for c in codes]
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)) + bytes(scales)


def decode(record: bytes, fmt: str) -> list[float]:
    """The values of a record; what float32 cannot hold is infinite."""
    size, table = SHAPES[fmt]
    per_scale = size if table is E4M3 else size // 2
    count = len(record) // (per_scale + 1)
    data, scales = record[:-count], record[-count:]
    signed = [(b & 127, b >> 7) for b in data]
    if table is E2M1:
        signed = [(n & 7, n >> 3) for b in data for n in (b & 15, b >> 4)]
    values = []
    for position, (code, sign) in enumerate(signed):
        factor = _scale_value(scales[position // size], fmt)
        if factor is None or code >= len(table):
            values.append(math.nan)
            continue
        product = table[code] * factor
        magnitude = math.inf if product >= Fraction(2) ** 128 else float(product)
        values.append(math.copysign(magnitude, -1.0 if sign else 1.0))
    return values


def _scale(group: Sequence[float], fmt: str) -> int:
    if any(math.isnan(v) for v in group):
        return 127 if fmt == "nvfp4_g16" else 255
    largest = max(abs(v) for v in group)
    if fmt == "nvfp4_g16":
        if math.isinf(largest):
            return 126
        return _nearest(max(Fraction(largest), 6 * Fraction(2) ** -9) / 6, E4M3)
    top, floor = (Fraction(448), Fraction(_float32(1e-4))) if fmt == "mxfp8_g32" else (6, 6 * Fraction(2) ** -126)
    # An infinity takes the exponent that follows the largest float32.
    amax = Fraction(2) ** 128 if math.isinf(largest) else max(Fraction(largest), floor)
    exponent = -127
    while top * Fraction(2) ** exponent < amax:
        exponent += 1
    return exponent + 127


def _scale_value(code: int, fmt: str) -> Fraction | None:
    if fmt == "nvfp4_g16":
        return None if code == 127 else E4M3[code]
    return None if code == 255 else Fraction(2) ** (code - 127)


def _code(value: float, scale: Fraction, table: Sequence[Fraction]) -> int:
    """The code of a value, its sign in bit 7."""
    sign = 128 if math.copysign(1.0, value) < 0 else 0
    if math.isinf(value):
        return sign | len(table) - 1
    return sign | _nearest(abs(Fraction(value)) / scale, table)


def _nearest(value: Fraction, table: Sequence[Fraction]) -> int:
    """The code whose value is nearest, the even code of two that are equally near."""
    return min(range(len(table)), key=lambda code: (abs(table[code] - value), code % 2))


def _float32(value: float) -> float:
    """``value`` rounded to 24 bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**24), exponent - 24)
