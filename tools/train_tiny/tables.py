"""What compiler and tokenizer fix for training, read from a file, so that training needs neither of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from refusals import run_first, unreadable
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FILE = "tables.safetensors"
HASH_PARTS = ("multipliers", "primes", "offsets")


@dataclass(frozen=True, slots=True)
class Hashes:
    """How an Engram layer finds its rows: int64 multipliers [n], primes and offsets [n - 1, heads]."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True)
class Tables:
    """By token id: ``token_map`` int64 [V], its Engram class; bool [V] ``begins_line``, whether it begins with a line
    break, ``is_break``, whether it is nothing but line breaks, and ``is_head``, whether it is the word that begins a
    function or a class. By Engram layer its ``hashes``.
    """

    token_map: Tensor
    begins_line: Tensor
    is_break: Tensor
    is_head: Tensor
    hashes: dict[int, Hashes]


def read_tables(work: Path) -> Tables:
    """The tables that ``data`` wrote into the working folder; ``InputError`` (DI442) if it did not."""
    path = work / FILE
    try:
        return _tables(load_file(path))
    except (OSError, SafetensorError, KeyError) as fault:
        raise unreadable("the file of hashes and token classes", path, fault, run_first("data")) from fault


def _tables(tensors: dict[str, Tensor]) -> Tables:
    layers = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("layers.")})
    hashes = {i: Hashes(*(tensors[f"layers.{i}.{part}"] for part in HASH_PARTS)) for i in layers}
    return Tables(tensors["token_map"], tensors["begins_line"], tensors["is_break"], tensors["is_head"], hashes)
