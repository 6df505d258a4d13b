"""Stored tensors in float64, decoded by the formats' definitions and by nothing of the runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from deepinfer_gen.runtime.weights import TensorSource

Array = npt.NDArray[np.float64]


# Rows decoded at a time: a released matrix has up to 157 million numbers.
_ROWS = 2048


def matrix(source: TensorSource, name: str) -> Array:
    """A weight [out, in] by its name without ``.weight``."""
    return np.concatenate(list(_decoded(source, name)))


def product(x: Array, source: TensorSource, name: str) -> Array:
    """x [..., in] times a weight [out, in] transposed."""
    return np.concatenate([x @ rows.T for rows in _decoded(source, name)], -1)


def _decoded(source: TensorSource, name: str) -> Iterator[Array]:
    kind = source.spec(f"{name}.weight").dtype
    stored = source.stored(f"{name}.weight")
    if kind in ("BF16", "F32"):
        yield stored.double().numpy()
        return
    scale, codes = _exponents()[source.stored(f"{name}.scale").numpy()], stored.numpy()
    for start in range(0, len(codes), _ROWS):
        part = codes[start : start + _ROWS]
        if kind == "F8_E4M3":
            squares = scale[start // 32 : start // 32 + _ROWS // 32]
            yield _e4m3()[part] * np.repeat(np.repeat(squares, 32, 0)[: len(part)], 32, 1)[:, : part.shape[1]]
        else:
            values = np.empty((len(part), 2 * part.shape[1]))
            values[:, 0::2], values[:, 1::2] = _e2m1()[part & 15], _e2m1()[part >> 4]
            yield values * np.repeat(scale[start : start + _ROWS], 32, 1)


def vector(source: TensorSource, name: str) -> Array:
    """A tensor that is stored as floats."""
    return source.stored(name).double().numpy()


def rms(x: Array, weight: Array) -> Array:
    """RMS norm over the last axis; the released epsilon of 1e-20 is below float64's reach here."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-20) * weight


def rotate(x: Array, turn: npt.NDArray[np.complex128], *, back: bool = False) -> Array:
    """The last 64 channels of x [..., D] in adjacent pairs times ``turn`` [32] or [..., 32]; ``back``: conjugated."""
    out = x.copy()
    pairs = x[..., -64::2] + 1j * x[..., -63::2]
    turned = pairs * (turn.conj() if back else turn)
    out[..., -64::2], out[..., -63::2] = turned.real, turned.imag
    return out


@lru_cache
def _e4m3() -> Array:
    table = []
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        size = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
        if exponent == 15 and mantissa == 7:
            size = math.nan
        table.append(-size if code & 128 else size)
    return np.array(table)


@lru_cache
def _e2m1() -> Array:
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return np.array(sizes + [-size for size in sizes])


@lru_cache
def _exponents() -> Array:
    return np.array([math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan])
