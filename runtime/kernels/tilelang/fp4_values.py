"""The numbers of the 4-bit cache formats as bits: e2m1 codes and the two kinds of scale that a group shares.

A scale is a byte: ``e4m3`` (4 exponent bits, bias 7, 3 mantissa bits, NaN but no infinity) or ``ue8m0`` (a power of
two, bias 127). The CPU target has no 8-bit floats, so they are integers here. Each function gives an expression in a
kernel's language ``T``; every comparison and product in it is exact, so that all targets give the same bytes. Bits
become a float only in a buffer: the CPU target takes the address of what it reinterprets.
"""

from __future__ import annotations

from typing import Any, Final

GROUPS: Final = {"nvfp4_g16": (16, "e4m3"), "mxfp4_g32": (32, "ue8m0")}
"""Cache formats of e2m1 codes: values of a group, kind of its scale."""

_MANTISSA_BITS, _MANTISSA, _HIDDEN, _HALF, _INFINITE = 23, 0x7FFFFF, 0x800000, 0x400000, 0x7F800000
_NAN, _TINIEST = 0x7FC00000, 0x00400000
_E4M3_NAN, _E4M3_MANTISSA, _E4M3_MAX = 0x7F, 3, 448.0
_DROPPED = _MANTISSA_BITS - _E4M3_MANTISSA
# Of an e4m3 number as a float32: the difference of the biases, the exponent of its least normal number, its step below.
_E4M3_BIASES, _E4M3_NORMAL, _E4M3_STEP = 120, 121, 2.0**-9
_UE8M0_NAN = 255
_E2M1_MAX = 6.0
# Least magnitudes of the codes 1 to 6 over the scale. A value on a bound takes the even one of its two codes.
_BOUNDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True))
_HALF_OF_LAST_BOUND = 2.5


def magnitude_bits(T: Any, value: Any) -> Any:
    """Bits of |value|, int32: ordered like the magnitudes, NaN above all. ``value`` is an element of a buffer."""
    return T.reinterpret(value, "int32") & 0x7FFFFFFF


def scale_quotient(T: Any, amax: Any) -> Any:
    """What the ``e4m3`` scale of a group is rounded from: max(amax, 6 x 2^-9) / 6, at most 448."""
    floored = T.max(amax, T.float32(_E2M1_MAX * _E4M3_STEP))
    return T.min(floored / T.float32(_E2M1_MAX), T.float32(_E4M3_MAX))


def scale_byte(T: Any, kind: str, largest: Any, quotient: Any) -> Any:
    """The scale of a group, int32 0 .. 255; a NaN makes it NaN.

    ``largest`` are the magnitude bits of its largest value, ``quotient`` those of its ``scale_quotient``. An ``e4m3``
    scale is the number nearest to the quotient; a ``ue8m0`` scale the least power of two that is not below
    max(amax, 6 x 2^-126) / 6.
    """
    if kind == "ue8m0":
        # 6 is 1.5 x 2^2, so the exponent of amax / 6 is that of amax less 2, or 3 where the mantissa is under 1.5.
        exponent = ((largest + (_MANTISSA - _HALF)) >> _MANTISSA_BITS) - 2
        return T.if_then_else(largest > _INFINITE, _UE8M0_NAN, T.max(exponent, 1))
    odd = (quotient >> _DROPPED) & 1
    normal = (quotient - (_E4M3_BIASES << _MANTISSA_BITS) + (1 << (_DROPPED - 1)) - 1 + odd) >> _DROPPED
    dropped = _DROPPED + _E4M3_NORMAL - T.min(quotient >> _MANTISSA_BITS, _E4M3_NORMAL)
    whole = (quotient & _MANTISSA) | _HIDDEN
    below = (whole + (T.int32(1) << (dropped - 1)) - 1 + ((whole >> dropped) & 1)) >> dropped
    rounded = T.if_then_else(quotient >= (_E4M3_NORMAL << _MANTISSA_BITS), normal, below)
    return T.if_then_else(largest > _INFINITE, _E4M3_NAN, rounded)


def scale_bits(T: Any, kind: str, byte: Any) -> Any:
    """Float32 bits, int32, of a scale byte (int32), less the sign; not of the ``e4m3`` bytes below the normal ones."""
    if kind == "ue8m0":
        bits = T.if_then_else(byte == 0, _TINIEST, byte << _MANTISSA_BITS)
        return T.if_then_else(byte == _UE8M0_NAN, _NAN, bits)
    size = byte & _E4M3_NAN
    return T.if_then_else(size == _E4M3_NAN, _NAN, (size << _DROPPED) + (_E4M3_BIASES << _MANTISSA_BITS))


def scale_value(T: Any, kind: str, byte: Any, number: Any) -> Any:
    """The float32 that a scale byte (int32) stands for; ``number`` is the one of its ``scale_bits``."""
    if kind == "ue8m0":
        return number
    size = byte & _E4M3_NAN
    value = T.if_then_else(size < (1 << _E4M3_MANTISSA), T.cast(size, "float32") * T.float32(_E4M3_STEP), number)
    return T.if_then_else(byte > _E4M3_NAN, -value, value)


def code(T: Any, kind: str, value: Any, byte: Any, scale: Any) -> Any:
    """The e2m1 code nearest to value / scale, int32 0 .. 15: 0 where the scale is NaN.

    ``value`` is an element of a buffer, ``scale`` the value of ``byte``.
    """
    nan = _UE8M0_NAN if kind == "ue8m0" else _E4M3_NAN
    size = T.max(value, -value)
    sign = T.if_then_else(byte == nan, 0, (T.reinterpret(value, "int32") >> 28) & 8)
    # A product of a bound and a scale has few bits: unlike a quotient it is never rounded.
    reached = [size >= scale * T.float32(b) if closed else size > scale * T.float32(b) for b, closed in _BOUNDS]
    # Five times the largest scale is infinite, and an infinite value has to be above it.
    reached.append(size * T.float32(0.5) > scale * T.float32(_HALF_OF_LAST_BOUND))
    return sum((T.if_then_else(bound, 1, 0) for bound in reached), start=sign)


def code_value(T: Any, bits: Any) -> Any:
    """The float32 of an e2m1 code (int32 0 .. 15): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    size = bits & 7
    small = T.cast(size, "float32") * T.float32(0.5)
    large = T.if_then_else(size == 7, T.float32(_E2M1_MAX), T.cast(size - 2, "float32"))
    number = T.if_then_else(size < 5, small, large)
    return T.if_then_else(bits > 7, -number, number)
