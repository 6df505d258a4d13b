"""Cache record formats: how one row of numbers becomes the bytes that the layout reserves for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from deepinfer_gen.diagnostics import Diagnostic, InputError

if TYPE_CHECKING:
    from torch import Tensor


class CacheCodec(Protocol):
    """One record format; rows are stored as ``storage`` elements, ``row_bytes`` of them in bytes."""

    @property
    def storage(self) -> torch.dtype:
        """Element type of a stored row."""
        ...

    def encode(self, values: Tensor) -> Tensor:
        """float32 [..., dims] to stored elements [..., row_bytes / element size]."""
        ...

    def decode(self, stored: Tensor) -> Tensor:
        """Stored elements back to float32 [..., dims]: the value attention reads."""
        ...


class Fp32Codec:
    """Rows are float32, unquantised (``numerics.policy: float32_unquantized``)."""

    storage = torch.float32

    def encode(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def decode(self, stored: Tensor) -> Tensor:
        """The values themselves."""
        return stored


CODECS: Mapping[str, CacheCodec] = {"fp32": Fp32Codec()}


def codec_of(cache_format: str) -> CacheCodec:
    """The codec of a format name in the layout; ``InputError`` names a format that has none yet."""
    codec = CODECS.get(cache_format)
    if codec is None:
        raise InputError(
            Diagnostic(
                "DI340",
                f"the engine stores cache rows as '{cache_format}', and the runtime has no encoder for that format yet"
                f" (built: {', '.join(sorted(CODECS))})",
                help="generate the engine with numerics.policy: float32_unquantized",
            )
        )
    return codec
