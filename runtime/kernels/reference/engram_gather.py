"""Engram table rows, decoded as they are read: the tables stay as stored."""

from __future__ import annotations

from torch import Tensor

from deepinfer_gen.runtime.block_formats import dequantize_mxfp8
from deepinfer_gen.runtime.kernels.reference.tiles import tiled


def engram_gather(table: Tensor, scale: Tensor, rows: Tensor, *, tokens: int) -> Tensor:
    """Rows of an e4m3 table [N, d] with ue8m0 scales [N, groups] (both as bytes), decoded and joined per token.

    ``rows`` int64 [T, columns]; returns float32 [T, columns * d], ``tokens`` tokens at a time.
    """

    def gather(tile: Tensor) -> Tensor:
        index = tile.reshape(-1)
        decoded = dequantize_mxfp8(table.index_select(0, index), scale.index_select(0, index))
        return decoded.view(tile.shape[0], rows.shape[1] * table.shape[1])

    return tiled(gather, tokens, rows)
