"""What a step scheduled ahead still lacks, from the step before it: K lengths, tokens, n-gram tails.

The host planned with every draft accepted; the device knows how many were. What each value is, ``reference/zos_fix``
says.
"""

from collections.abc import Callable
from typing import Any

import torch

from deepinfer_gen.runtime.kernels.reference.zos_fix import LastStep, PlannedRows, StepTokens
from deepinfer_gen.runtime.kernels.tilelang.compile import Target
from deepinfer_gen.runtime.kernels.tilelang.dialect import Dialect


def get_zos_fix_kernel(d: Dialect, *, max_q: int, history: int, threads: int) -> Any:
    """One block a row; ``before`` is what the planned row starts with, ``last`` the step that ``remap`` points into.

    All int64. A row's queries go to ``q_start`` .. ``q_start + q_len - 1`` of the outputs over tokens.
    """
    T = d.T
    rows, before, tokens = T.dynamic("rows"), T.dynamic("before"), T.dynamic("tokens")
    i64 = "int64"
    drafts = max(max_q - 1, 1)  # without drafts the argument is there and not read

    @T.prim_func
    def zos_fix(
        remap: T.Tensor((rows,), i64),
        start: T.Tensor((rows,), i64),
        q_start: T.Tensor((rows,), i64),
        q_len: T.Tensor((rows,), i64),
        host_tokens: T.Tensor((rows, max_q), i64),
        host_history: T.Tensor((rows, history), i64),
        last_assumed: T.Tensor((before,), i64),
        last_counts: T.Tensor((before,), i64),
        last_first: T.Tensor((before,), i64),
        last_tokens: T.Tensor((before, max_q), i64),
        last_drafts: T.Tensor((before, drafts), i64),
        last_history: T.Tensor((before, history), i64),
        k_len: T.Tensor((rows,), i64),
        input_ids: T.Tensor((tokens,), i64),
        positions: T.Tensor((tokens,), i64),
        row_of_token: T.Tensor((tokens,), i64),
        tails: T.Tensor((rows, history), i64),
    ):
        with d.kernel(rows, threads=threads) as r:
            source = T.max(remap[r], T.int64(0))
            count = last_counts[source]
            first = T.if_then_else(remap[r] >= 0, start[r] - last_assumed[source] + count, start[r])
            for _ in d.parallel(1):
                k_len[r] = first + q_len[r]
            for j in d.parallel(max_q):
                if j < q_len[r]:
                    newest = last_tokens[source, T.max(count - 1, T.int64(0))]
                    drafted = T.if_then_else(j == 0, newest, last_drafts[source, T.max(j - 1, 0)])
                    input_ids[q_start[r] + j] = T.if_then_else(remap[r] >= 0, drafted, host_tokens[r, j])
                    positions[q_start[r] + j] = first + j
                    row_of_token[q_start[r] + j] = T.cast(r, i64)
            for j in d.parallel(history):
                # The last ids of: the last step's tail, its first query, the tokens it yielded but the newest.
                place = count + j
                yielded = last_tokens[source, T.max(place - (history + 1), T.int64(0))]
                older = last_history[source, T.min(place, T.int64(history - 1))]
                kept = T.if_then_else(
                    place < history, older, T.if_then_else(place == history, last_first[source], yielded)
                )
                tails[r, j] = T.if_then_else(remap[r] >= 0, kept, host_history[r, j])

    return zos_fix


def bind(
    target: Target, *, max_q: int, history: int, threads: int
) -> Callable[[PlannedRows, LastStep, int], StepTokens]:
    """``reference.zos_fix.zos_fix`` for rows of at most ``max_q`` queries: the same arguments, the same result."""
    body = get_zos_fix_kernel(target.dialect, max_q=max_q, history=history, threads=threads)
    kernel = target.compile(body)

    def zos_fix(planned: PlannedRows, last: LastStep, total_q: int) -> StepTokens:
        rows, device = planned.remap.shape[0], planned.remap.device
        made = StepTokens(
            k_len=torch.empty_like(planned.start),
            input_ids=torch.empty(total_q, dtype=torch.int64, device=device),
            positions=torch.empty(total_q, dtype=torch.int64, device=device),
            row_of_token=torch.empty(total_q, dtype=torch.int64, device=device),
            history=torch.empty_like(planned.history),
        )
        if rows:
            kernel(*planned, *(last if max_q > 1 else last._replace(drafts=last.tokens)), *made)
        return made

    return zos_fix
