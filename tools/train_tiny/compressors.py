"""What zlib and xz make of the same files, alone and knowing the training text."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Sequence

from tqdm import tqdm

ZLIB_WINDOW = 1 << 15
"""Bytes of a preset dictionary that deflate can reach."""

_XZ = 9 | lzma.PRESET_EXTREME


def zlib_bytes(texts: Sequence[bytes], known: bytes = b"") -> int:
    """Bytes of ``zlib -9`` of each text by itself, with the end of ``known`` as preset dictionary."""
    total = 0
    for text in texts:
        packer = zlib.compressobj(9, zdict=known[-ZLIB_WINDOW:]) if known else zlib.compressobj(9)
        total += len(packer.compress(text)) + len(packer.flush())
    return total


def xz_bytes(texts: Sequence[bytes]) -> int:
    """Bytes of ``xz -9e`` of each text by itself."""
    return sum(len(lzma.compress(text, preset=_XZ)) for text in tqdm(texts, desc="xz", unit="file"))


def xz_solid_bytes(texts: Sequence[bytes], known: Sequence[bytes]) -> int:
    """By how many bytes one ``xz -9e`` archive of ``known`` grows when all ``texts`` follow in it.

    Its dictionary of 64 MiB reaches back over all of them, so that each text also knows those before it.
    """
    return _solid([*known, *texts], "xz, train and test") - _solid(known, "xz, train")


def _solid(texts: Sequence[bytes], what: str) -> int:
    packer = lzma.LZMACompressor(preset=_XZ)
    written = sum(len(packer.compress(text)) for text in tqdm(texts, desc=what, unit="file"))
    return written + len(packer.flush())
