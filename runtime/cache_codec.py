"""Cache record formats: how one row of numbers becomes the bytes that the layout reserves for it.

A record of a quantised format is its data bytes followed by its scale bytes; ``block_formats`` states the rules. A row
of an unquantised format is its elements. A record depends on nothing but its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.block_formats import (
    MX_GROUP,
    NVFP4_GROUP,
    dequantize_mxfp4,
    dequantize_mxfp8,
    dequantize_nvfp4,
    quantize_mxfp4,
    quantize_mxfp8,
    quantize_nvfp4,
)

if TYPE_CHECKING:
    from torch import Tensor


class CacheCodec(Protocol):
    """One record format; rows are stored as ``storage`` elements, ``row_bytes`` of them in bytes."""

    @property
    def storage(self) -> torch.dtype:
        """Element type of a stored row: uint8 for records of data and scales."""
        ...

    @property
    def data_bytes_per_scale(self) -> int:
        """Data bytes that share one byte of scale; 0 where there are no scales."""
        ...

    def encode(self, values: Tensor) -> Tensor:
        """Floats [..., dims] to stored elements [..., row_bytes / element size]."""
        ...

    def decode(self, stored: Tensor) -> Tensor:
        """Stored elements back to float32 [..., dims]: the value attention reads."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Rows are floats of type ``storage``, without scales."""

    storage: torch.dtype
    data_bytes_per_scale: int = 0

    def encode(self, values: Tensor) -> Tensor:
        """The values, rounded to the stored type."""
        return values.to(self.storage)

    def decode(self, stored: Tensor) -> Tensor:
        """The values as float32; the stored tensor itself where it is float32 already."""
        return stored.to(torch.float32)


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """Rows are quantised in groups; a record is uint8, data then scales."""

    quantize: Callable[[Tensor], tuple[Tensor, Tensor]]
    dequantize: Callable[[Tensor, Tensor], Tensor]
    data_bytes_per_scale: int
    storage: torch.dtype = torch.uint8

    def encode(self, values: Tensor) -> Tensor:
        """Quantise in float32, whatever float type ``values`` has."""
        return torch.cat(self.quantize(values), -1)

    def decode(self, stored: Tensor) -> Tensor:
        """Exact."""
        scales = stored.shape[-1] // (self.data_bytes_per_scale + 1)
        data = stored.shape[-1] - scales
        return self.dequantize(stored[..., :data], stored[..., data:])


CODECS: Mapping[str, CacheCodec] = {
    "mxfp8_g32": BlockCodec(quantize_mxfp8, dequantize_mxfp8, data_bytes_per_scale=MX_GROUP),
    "mxfp4_g32": BlockCodec(quantize_mxfp4, dequantize_mxfp4, data_bytes_per_scale=MX_GROUP // 2),
    "nvfp4_g16": BlockCodec(quantize_nvfp4, dequantize_nvfp4, data_bytes_per_scale=NVFP4_GROUP // 2),
    "bf16": PlainCodec(torch.bfloat16),
    "fp32": PlainCodec(torch.float32),
}


def codec_of(cache_format: str) -> CacheCodec:
    """The codec of a format name in the layout; ``InputError`` names a format that has none."""
    codec = CODECS.get(cache_format)
    if codec is None:
        raise InputError(
            Diagnostic(
                "DI340",
                f"the engine stores cache rows as '{cache_format}', and the runtime has no encoder for that format"
                f" (built: {', '.join(sorted(CODECS))})",
                file="layout.json",
                help="generate the engine again with this version of deepinfer-gen",
            )
        )
    return codec
