"""The gather half of ``zos_fix``: K lengths and first tokens through ``remap``, in the Ascend dialect."""

from typing import Any


def get_zos_fix_kernel(T: Any, *, rows: int, max_q: int, programs: int, threads: int) -> Any:
    """``rows`` rows by ``programs`` cores; ``T`` is the dialect. ``programs`` divides ``rows``.

    ``remap``, ``start``, ``q_len``, ``host_first``, ``last_assumed``, ``last_counts`` int32 [rows], ``last_tokens``
    int32 [rows, max_q] to ``k_len`` and ``first`` int32 [rows]: as ``reference/zos_fix`` says.
    """
    share = rows // programs

    @T.prim_func
    def zos_fix(
        remap: T.Tensor((rows,), "int32"),
        start: T.Tensor((rows,), "int32"),
        q_len: T.Tensor((rows,), "int32"),
        host_first: T.Tensor((rows,), "int32"),
        last_assumed: T.Tensor((rows,), "int32"),
        last_counts: T.Tensor((rows,), "int32"),
        last_tokens: T.Tensor((rows, max_q), "int32"),
        k_len: T.Tensor((rows,), "int32"),
        first: T.Tensor((rows,), "int32"),
    ):
        with T.Kernel(programs) as p, T.SimtVF(threads=threads):
            for j in T.Parallel(share):
                r = p * share + j
                source = T.max(remap[r], 0)
                surplus = T.if_then_else(remap[r] >= 0, last_assumed[source] - last_counts[source], 0)
                k_len[r] = start[r] - surplus + q_len[r]
                newest = last_tokens[source, T.max(last_counts[source] - 1, 0)]
                first[r] = T.if_then_else(remap[r] >= 0, newest, host_first[r])

    return zos_fix
