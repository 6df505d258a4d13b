"""Indices of the mirror split of context-parallel prefill; ``reference/mirror_cp`` says what they are."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from deepinfer_gen.runtime.kernels.reference.mirror_cp import MirrorSplit
from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect


def get_mirror_cp_kernel(d: Dialect, *, cp: int, tile: int, threads: int) -> Any:
    """One block a chunk, ``tile`` of its tokens at a time; all int64. ``tokens`` [cp, total] is -1 before the call.

    A block adds up what earlier chunks gave each rank: chunks are few (``limits.max_num_prompts``).
    """
    T = d.T
    bounds, total = T.dynamic("bounds"), T.dynamic("total")
    pieces = 2 * cp
    i64 = "int64"

    @T.prim_func
    def mirror_cp(
        starts: T.Tensor((bounds,), i64),
        owner: T.Tensor((total,), i64),
        place: T.Tensor((total,), i64),
        tokens: T.Tensor((cp, total), i64),
        counts: T.Tensor((cp,), i64),
    ):
        with d.kernel(bounds - 1, threads=threads) as chunk:
            given = d.staged((cp,), i64)
            share = d.scalar(i64)
            for rank in d.parallel(cp):
                share[0] = T.int64(0)
                for s in T.serial(chunk):
                    share[0] = share[0] + _share(T, starts[s + 1] - starts[s], rank, pieces)
                given[rank] = share[0]
            length = starts[chunk + 1] - starts[chunk]
            size = T.max((length + (pieces - 1)) // pieces, T.int64(1))
            for t in T.serial(T.ceildiv(length, tile)):
                for j in d.parallel(tile):
                    inside = t * tile + j
                    if inside < length:
                        piece = inside // size
                        rank = T.min(piece, pieces - 1 - piece)
                        # The mirror image comes after the rank's first piece, which is whole if there is an image.
                        within = inside - piece * size + T.if_then_else(piece < cp, T.int64(0), size)
                        owner[starts[chunk] + inside] = rank
                        place[starts[chunk] + inside] = given[rank] + within
                        tokens[rank, given[rank] + within] = starts[chunk] + inside
            for rank in d.parallel(cp):
                if chunk == bounds - 2:
                    counts[rank] = given[rank] + _share(T, length, rank, pieces)

    return mirror_cp


def _share(T: Any, length: Any, rank: Any, pieces: int) -> Any:
    """Tokens of a chunk of ``length`` that a rank has: those of its two pieces."""
    size = (length + (pieces - 1)) // pieces
    zero = T.int64(0)
    first = T.max(T.min(length - rank * size, size), zero)
    return first + T.max(T.min(length - (pieces - 1 - rank) * size, size), zero)


def bind(target: Target, *, cp: int, tile: int, threads: int) -> Callable[[Tensor, int], MirrorSplit]:
    """``reference.mirror_cp.mirror_split`` for ``cp`` ranks."""
    kernel = target.compile(get_mirror_cp_kernel(target.dialect, cp=cp, tile=tile, threads=threads))

    def mirror_split(starts: Tensor, total: int) -> MirrorSplit:
        made = MirrorSplit(
            owner=starts.new_empty(total),
            place=starts.new_empty(total),
            tokens=starts.new_full((cp, total), -1),
            counts=starts.new_zeros(cp),
        )
        if total:
            kernel(starts, *made)
        return made

    return mirror_split
