"""Completing a step that was scheduled ahead: the torch form against sequences of ids, then the kernel against it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import disagreements

from deepinfer_gen.runtime.kernels.reference.zos_fix import LastStep, PlannedRows, zos_fix

MAX_Q, DEPTH = 4, 3


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[dict[str, object]], list[int], list[int]]:
    """Rows of the last step as whole sequences; for each row of this step where it was (or -1) and its queries."""
    before = []
    for row in range(draw(st.integers(1, 4))):
        known = draw(st.integers(1, 6))  # ids up to and with the last step's first query
        yielded = draw(st.integers(1, MAX_Q))
        ids = [1000 * (row + 1) + n for n in range(known + yielded)]
        before.append({"ids": ids, "known": known, "yielded": yielded, "assumed": draw(st.integers(yielded, MAX_Q))})
    remap = draw(st.permutations(range(len(before))))[: draw(st.integers(0, len(before)))]
    rows = list(remap) + [-1] * draw(st.integers(0, 2))
    rows = draw(st.permutations(rows)) if rows else [-1]
    return before, list(rows), [draw(st.integers(0 if source < 0 else 1, MAX_Q)) for source in rows]


def tail(ids: list[int]) -> list[int]:
    """The last ids of a sequence, -1 before its start."""
    return ([-1] * DEPTH + ids)[-DEPTH:]


@given(scenes())
def test_every_row_goes_on_where_its_sequence_ended(
    scene: tuple[list[dict[str, object]], list[int], list[int]],
) -> None:
    before, remap, q_len = scene
    padded = [row["ids"][row["known"] :] + [-7] * (MAX_Q - row["yielded"]) for row in before]
    drafts = [[9000 + 10 * row + n for n in range(MAX_Q - 1)] for row in range(len(before))]
    last = LastStep(
        assumed=torch.tensor([row["assumed"] for row in before]),
        counts=torch.tensor([row["yielded"] for row in before]),
        first=torch.tensor([row["ids"][row["known"] - 1] for row in before]),
        tokens=torch.tensor(padded),
        drafts=torch.tensor(drafts),
        history=torch.tensor([tail(row["ids"][: row["known"] - 1]) for row in before]),
    )
    new_ids = [[-1 if source >= 0 else 50 * r + n for n in range(MAX_Q)] for r, source in enumerate(remap)]
    new_tail = [[-1] * DEPTH if source >= 0 else [r, r + 1, r + 2] for r, source in enumerate(remap)]
    # The host took what it assumed for yielded: the row's first query stands that far behind the last step's.
    planned_start = [20 if s < 0 else before[s]["known"] - 1 + before[s]["assumed"] for s in remap]
    starts = torch.tensor(q_len).cumsum(0) - torch.tensor(q_len)
    planned = PlannedRows(
        torch.tensor(remap), torch.tensor(planned_start), starts, torch.tensor(q_len), torch.tensor(new_ids),
        torch.tensor(new_tail),
    )  # fmt: skip

    made = zos_fix(planned, last, sum(q_len))

    ids, positions, rows, k_len, history = [], [], [], [], []
    for r, source in enumerate(remap):
        if source < 0:
            first, queries, before_it = 20, new_ids[r], new_tail[r]
        else:
            sequence = before[source]["ids"]
            first, before_it = len(sequence) - 1, tail(sequence[:-1])
            queries = [sequence[-1], *drafts[source]]
        ids += queries[: q_len[r]]
        positions += range(first, first + q_len[r])
        rows += [r] * q_len[r]
        k_len.append(first + q_len[r])
        history.append(before_it)
    assert [t.tolist() for t in made] == [k_len, ids, positions, rows, history]


@pytest.mark.long
def test_the_compiled_kernel_equals_the_reference() -> None:
    assert disagreements("zos_fix", "cpu") == []
