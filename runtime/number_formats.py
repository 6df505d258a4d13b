"""The narrow number formats of weights, caches and activations: e2m1, e4m3 and ue8m0, as bytes and as float32.

| code | bits | largest | NaN |
|---|---|---|---|
| e2m1 | sign, 2 exponent, 1 mantissa; two codes a byte, the even element in the low nibble | 6 | none |
| e4m3 | sign, 4 exponent (bias 7), 3 mantissa; the "fn" variant without infinities | 448 | 0x7F, 0xFF |
| ue8m0 | exponent only: byte e is 2^(e - 127) | 2^127 | 255 |

Rounding is to nearest, ties to the even code (OCP MX specification 1.0). Decoding is exact. Everything runs on the
device of its input. Groups that share a scale are the subject of ``block_formats``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

E2M1_MAX = 6.0
E4M3_MAX = 448.0

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_SIGNED = (*_E2M1, *(-v for v in _E2M1))
_MANTISSA_BITS, _MANTISSA, _BIAS = 23, 0x7FFFFF, 127
_UE8M0_NAN = 255


def decode_ue8m0(scale: Tensor) -> Tensor:
    """uint8 exponents to float32 powers of two, same shape."""
    return scale.view(torch.float8_e8m0fnu).to(torch.float32)


def ceil_ue8m0(amax: Tensor, largest: float) -> Tensor:
    """The smallest power of two s with ``amax`` <= s * ``largest``, as uint8 exponents; NaN gives NaN.

    ``amax`` float32 is at least 2^-126 * ``largest``. Computed on the bits of the float and therefore exact: the
    exponent of amax / largest, plus one where the mantissa exceeds that of ``largest``.
    """
    exponent, mantissa = _bits(largest)
    above = ((amax.view(torch.int32) + (_MANTISSA - mantissa)) >> _MANTISSA_BITS) - (exponent - _BIAS)
    return above.masked_fill_(amax.isnan(), _UE8M0_NAN).to(torch.uint8)


def reciprocal_ue8m0(scale: Tensor) -> Tensor:
    """float32 reciprocals of uint8 exponents of 1 and more (254 - e is the opposite exponent); NaN stays NaN."""
    return decode_ue8m0((_UE8M0_NAN - 1) - scale)


def decode_e4m3(codes: Tensor) -> Tensor:
    """uint8 codes to float32, same shape."""
    # Two codes a look-up: ten times faster on a CPU than the conversion of the float8 type.
    flat = codes.reshape(-1).contiguous()
    count = flat.shape[0]
    if count % 2 or flat.storage_offset() % 2:
        flat = torch.nn.functional.pad(flat, (0, 2 - count % 2))
    index = flat.view(torch.uint16).to(torch.int32)
    return _e4m3_pairs(codes.device).index_select(0, index).view(torch.float32)[:count].view(codes.shape)


def encode_e4m3(values: Tensor) -> Tensor:
    """float32 to uint8 codes, same shape; what exceeds 448, infinities included, becomes 448; NaN keeps its sign."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def decode_e2m1(packed: Tensor) -> Tensor:
    """uint8 pairs of codes [..., n] to float32 [..., 2 n]."""
    index = packed.to(torch.int32).reshape(-1)
    values = _e2m1_pairs(packed.device).index_select(0, index).view(torch.float32)
    return values.view(*packed.shape[:-1], 2 * packed.shape[-1])


def encode_e2m1(values: Tensor) -> Tensor:
    """float32 [..., 2 n] without NaN to uint8 pairs of codes [..., n]; what exceeds 6 becomes 6; -0.0 has a sign."""
    magnitude = values.abs()
    # Codes are 2y up to 2, y + 2 up to 4 and y / 2 + 4 up to 6: the least of the three rounded lines everywhere, and
    # rounding half to even on each line is rounding to the even code.
    code = (magnitude * 2).round_()
    torch.minimum(code, magnitude.round().add_(2), out=code)
    torch.minimum(code, magnitude.mul_(0.5).round_().add_(4), out=code)
    codes = code.clamp_(max=7).to(torch.int32)
    # The sign bit of the float becomes bit 3.
    codes.bitwise_or_((values.contiguous().view(torch.int32) >> 28).bitwise_and_(8))
    pairs = torch.unflatten(codes, -1, (-1, 2))
    return pairs[..., 1].bitwise_left_shift_(4).bitwise_or_(pairs[..., 0]).to(torch.uint8)


def _bits(value: float) -> tuple[int, int]:
    """Biased exponent and mantissa of a positive float32."""
    bits = int(torch.tensor(value, dtype=torch.float32).view(torch.int32))
    return bits >> _MANTISSA_BITS, bits & _MANTISSA


@functools.cache
def _e4m3_pairs(device: torch.device) -> Tensor:
    """Both float32 values of each two bytes, as one int64: [65536]."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    return _look_up(values, device)


@functools.cache
def _e2m1_pairs(device: torch.device) -> Tensor:
    """Both float32 values of each byte, as one int64: [256]."""
    return _look_up(torch.tensor(_E2M1_SIGNED, dtype=torch.float32), device)


def _look_up(values: Tensor, device: torch.device) -> Tensor:
    """All pairs of ``values`` [n], the first running fastest: one int64 for each, [n * n]."""
    n = values.shape[0]
    pairs = torch.stack([values.repeat(n), values.repeat_interleave(n)], 1)
    return pairs.view(torch.int64).view(-1).to(device)
