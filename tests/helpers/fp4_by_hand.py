"""The records of e2m1 codes with group scales, worked out value by value in exact fractions.

The rules: a group's scale is the e4m3 number nearest to max(amax, 6 x 2^-9) / 6, or the least power of two that is not
below max(amax, 6 x 2^-126) / 6; a value becomes the code nearest to value / scale, ties to the even code, the sign bit
kept. The division of the e4m3 rule is one of float32. A NaN makes its group's scale NaN and its codes 0; an infinity
counts as the largest magnitude.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

CODES = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
E4M3 = [
    Fraction(m, 8) * Fraction(2) ** -6 if e == 0 else (1 + Fraction(m, 8)) * Fraction(2) ** (e - 7)
    for e in range(16)
    for m in range(8)
][:127]
GROUP = {"nvfp4_g16": 16, "mxfp4_g32": 32}
NAN_SCALE = {"nvfp4_g16": 0x7F, "mxfp4_g32": 0xFF}


def encode(values: Tensor, format: str) -> Tensor:
    """float32 [rows, dims] to uint8 records [rows, row bytes]."""
    return torch.tensor([_record(row, format) for row in values.numpy()], dtype=torch.uint8)


def decode(records: Tensor, format: str) -> Tensor:
    """uint8 records [rows, row bytes] to float32 [rows, dims]."""
    group = GROUP[format]
    data = records.shape[1] * (group // 2) // (group // 2 + 1)
    rows = []
    for record in records.tolist():
        codes = [c for byte in record[:data] for c in (byte & 15, byte >> 4)]
        rows.append([_product(c, record[data + n // group], format) for n, c in enumerate(codes)])
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return torch.tensor(np.array(rows, dtype=np.float32))


def _record(row: np.ndarray, format: str) -> list[int]:
    codes: list[int] = []
    scales: list[int] = []
    for group in row.reshape(-1, GROUP[format]):
        amax = np.abs(group).max()
        if np.isnan(amax):
            scales.append(NAN_SCALE[format])
            codes += [0] * len(group)
            continue
        scale_code, scale = _e4m3_scale(amax) if format == "nvfp4_g16" else _ue8m0_scale(amax)
        scales.append(scale_code)
        codes += [_code(float(x), scale) for x in group]
    return [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)] + scales


def _e4m3_scale(amax: np.float32) -> tuple[int, Fraction]:
    quotient = float(np.float32(max(amax, np.float32(6 * 2.0**-9))) / np.float32(6))
    wanted = E4M3[-1] if math.isinf(quotient) else Fraction(quotient)
    code = min(range(1, 127), key=lambda c: (abs(E4M3[c] - wanted), c % 2))
    return code, E4M3[code]


def _ue8m0_scale(amax: np.float32) -> tuple[int, Fraction]:
    # An infinity is stored as the largest code; the scale is that of the value a float32 after its largest, 2^128.
    size = Fraction(2) ** 128 if math.isinf(amax) else Fraction(float(amax))
    exponent = -126
    while not math.isinf(amax) and Fraction(2) ** exponent * 6 < size:
        exponent += 1
    exponent = 126 if math.isinf(amax) else exponent
    return exponent + 127, Fraction(2) ** exponent


def _code(x: float, scale: Fraction) -> int:
    sign = 8 if math.copysign(1.0, x) < 0 else 0
    if math.isinf(x):
        return sign | 7
    size = abs(Fraction(x)) / scale
    return sign | min(range(8), key=lambda c: (abs(CODES[c] - size), c % 2))


def _product(code: int, scale_code: int, format: str) -> float:
    sign = -1.0 if code > 7 else 1.0
    size = float(CODES[code & 7])
    if format == "mxfp4_g32":
        return math.nan if scale_code == 0xFF else sign * size * 2.0 ** (scale_code - 127)
    if scale_code & 0x7F == 0x7F:
        return math.nan
    return sign * size * float(E4M3[scale_code & 0x7F]) * (-1.0 if scale_code > 0x7F else 1.0)
