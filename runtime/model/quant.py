"""Decoding of stored weights: FP8 tiles, MXFP4 experts, FP8 rows. Exact: every value is representable in float32."""

from __future__ import annotations

from torch import Tensor

from deepinfer_gen.runtime.block_formats import dequantize_mxfp4, dequantize_mxfp8
from deepinfer_gen.runtime.number_formats import decode_e4m3, decode_ue8m0


def decode_e4m3_tiles(weight: Tensor, scale: Tensor, tile: int) -> Tensor:
    """e4m3 bytes [N, K] with one ue8m0 byte per tile x tile square [ceil(N / tile), ceil(K / tile)] to float32."""
    n, k = weight.shape
    factors = decode_ue8m0(scale).repeat_interleave(tile, 0)[:n].repeat_interleave(tile, 1)[:, :k]
    return decode_e4m3(weight) * factors


def decode_e4m3_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """e4m3 bytes [N, K] with one ue8m0 byte per row and group [N, groups] to float32 [N, K]."""
    return dequantize_mxfp8(weight, scale)


def decode_mxfp4_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Packed e2m1 bytes [N, K / 2] with one ue8m0 byte per row and group [N, groups] to float32 [N, K]."""
    return dequantize_mxfp4(weight, scale)
