"""The compiled verification policies of ``tests/sim/verification.cpp``, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from built import TEST_CACHE
from numpy.typing import NDArray
from verification_model import Config, Row

from deepinfer_gen.codegen.compiler import FLAGS, find_compiler

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "sim" / "verification.cpp"
_MESSAGE = 400


@cache
def library() -> ctypes.CDLL:
    """Built once for each content of the headers."""
    headers = sorted((ROOT / "templates" / "engine").glob("*.hpp"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (SOURCE, *headers))).hexdigest()
    built = TEST_CACHE.parent / "verification" / f"{digest}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        visible = [flag for flag in FLAGS if flag != "-fvisibility=hidden"]
        arguments = [*visible, "-shared", f"-I{ROOT / 'templates'}", str(SOURCE), "-o", f"{digest}.part"]
        find_compiler().run(arguments, built.parent, built.parent / "log.txt", "tests/sim")
        shutil.move(built.parent / f"{digest}.part", built)
    loaded = ctypes.CDLL(str(built))
    loaded.policy_create.restype = ctypes.c_void_p
    loaded.policy_fingerprint.restype = ctypes.c_uint64
    return loaded


def config_count() -> int:
    return int(library().policy_configs())


class Policy:
    """One compiled policy; refusals of the C++ become ``ValueError``."""

    def __init__(self, index: int) -> None:
        self._library = library()
        self._policy = ctypes.c_void_p(self._library.policy_create(index))
        values = np.zeros(2000, np.int64)
        count = self._library.policy_constants(self._policy, _pointer(values), len(values))
        varlen, seqs, nextn, prior, numerator, denominator, padded, *sizes = values[:count].tolist()
        gain = (numerator, denominator)
        self.config = Config(bool(varlen), seqs, nextn, prior, gain, bool(padded), tuple(sizes))

    def __del__(self) -> None:
        self._library.policy_destroy(self._policy)

    def set_curve(self, milliseconds: Sequence[float]) -> None:
        curve = np.array(milliseconds, np.float64)
        self._guarded("policy_set_curve", _pointer(curve), ctypes.c_size_t(len(curve)))

    def observe(self, size: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        self._guarded("policy_observe", size, rows, ctypes.c_double(forward_ms), ctypes.c_double(sampler_ms))

    def choose(self, rows: Sequence[Row], limit: int) -> list[int]:
        nothing = [0] * self.config.nextn
        caps = np.array([row.cap for row in rows], np.int32)
        total = np.array([row.total or nothing for row in rows], np.uint16)
        split = np.array([row.split or nothing for row in rows], np.uint16)
        has_total = np.array([row.total is not None for row in rows], np.uint8)
        has_split = np.array([row.split is not None for row in rows], np.uint8)
        return self.choose_arrays(caps, total, has_total, split, has_split, limit).tolist()

    def choose_arrays(
        self,
        caps: NDArray[np.int32],
        total: NDArray[np.uint16],
        has_total: NDArray[np.uint8],
        split: NDArray[np.uint16],
        has_split: NDArray[np.uint8],
        limit: int,
    ) -> NDArray[np.int32]:
        drafts = np.full(len(caps), -7, np.int32)
        pointers = [_pointer(array) for array in (caps, total, has_total, split, has_split)]
        sizes = ctypes.c_size_t(len(caps)), ctypes.c_size_t(self.config.nextn)
        self._library.policy_choose(self._policy, *pointers, *sizes, limit, _pointer(drafts))
        return drafts

    def split(self, caps: Sequence[int], confidences: NDArray[np.uint16], total: int) -> list[int]:
        """Queries of each row."""
        counts, flat = np.array(caps, np.int32), np.ascontiguousarray(confidences, np.uint16)
        queries = np.full(len(counts), -7, np.int32)
        sizes = ctypes.c_size_t(len(counts)), ctypes.c_size_t(flat.size)
        self._guarded("policy_split", _pointer(counts), sizes[0], _pointer(flat), sizes[1], total, _pointer(queries))
        return queries.tolist()  # type: ignore[no-any-return]

    def wish(self, rows: int) -> int:
        return int(self._library.policy_wish(self._policy, rows))

    def fingerprint(self) -> int:
        return int(self._library.policy_fingerprint(self._policy))

    def restart(self) -> None:
        self._library.policy_restart(self._policy)

    def _guarded(self, name: str, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(_MESSAGE)
        if getattr(self._library, name)(self._policy, *arguments, message, ctypes.c_size_t(_MESSAGE)):
            raise ValueError(message.value.decode())


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
