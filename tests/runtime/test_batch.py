"""Batches filled from scheduler steps: right values, lasting copies, memory that is used again."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deepinfer_gen.runtime.batch import BatchBuffer, ForwardBatch

CPU = torch.device("cpu")


def step(q_len: list[int], first: int) -> SimpleNamespace:
    """A step whose arrays hold different numbers counted from ``first``, except those that must fit ``q_len``."""
    tokens, rows = sum(q_len), len(q_len)
    shapes = {
        "input_ids": (tokens,),
        "positions": (tokens,),
        "row_of_token": (tokens,),
        "k_len": (rows,),
        "prefill_len": (rows,),
        "slot": (rows,),
        "block_table": (rows, 5),
        "history": (rows, 3),
    }
    made = SimpleNamespace(q_len=np.array(q_len, np.int32))
    for name, shape in shapes.items():
        setattr(made, name, np.arange(first, first + np.prod(shape), dtype=np.int32).reshape(shape))
        first += int(np.prod(shape))
    return made


def check(batch: ForwardBatch, source: SimpleNamespace) -> None:
    assert batch.q_start.tolist() == (source.q_len.cumsum() - source.q_len).tolist()
    for name in vars(source):
        found = getattr(batch, name)
        assert found.dtype == torch.int64
        assert found.tolist() == getattr(source, name).tolist(), name


def test_a_batch_outlives_the_step_it_copies() -> None:
    first = step([2, 1, 3], 10)
    batch = ForwardBatch.from_step(first, CPU)
    kept = step([2, 1, 3], 10)
    first.input_ids[:] = -1
    check(batch, kept)


def test_a_buffer_is_filled_again_in_place() -> None:
    buffer = BatchBuffer(step([1, 1, 2, 0], 10), CPU)
    one = buffer.fill(step([1, 1, 2, 0], 10))
    tensors = [field.name for field in fields(one) if field.name != "prefills"]
    places = [getattr(one, name).data_ptr() for name in tensors]
    other = step([2, 1, 1, 0], 500)
    two = buffer.fill(other)
    check(two, other)
    assert [getattr(two, name).data_ptr() for name in tensors] == places


@pytest.mark.parametrize(
    ("k_len", "prefill_len", "prefills"),
    [([9, 5], [9, 4], True), ([9, 5], [20, 4], True), ([9, 5], [7, 4], False), ([2, 1], [0, 0], False)],
)
def test_a_step_prefills_while_a_first_token_is_inside_a_prompt(
    k_len: list[int], prefill_len: list[int], prefills: bool
) -> None:
    """Rows of 2 and 1 tokens that begin at 7 and 4, or padding."""
    arrays = step([2, 1], 10)
    buffer = BatchBuffer(arrays, CPU)
    arrays.k_len[:], arrays.prefill_len[:] = k_len, prefill_len
    arrays.history[:] = 5 if k_len[0] > 2 else -1
    assert buffer.fill(arrays).prefills is prefills


def test_rows_that_do_not_cover_the_tokens_are_refused() -> None:
    wrong = step([2, 1], 10)
    wrong.q_len[1] = 2
    with pytest.raises(ValueError, match="the rows hold 4 tokens, the step 3"):
        ForwardBatch.from_step(wrong, CPU)


def placed(start: int, history: list[int], queries: int = 2) -> SimpleNamespace:
    """A step of two rows: one that starts its sequence, and one with ``queries`` from position ``start``."""
    made = step([1, queries], 0)
    made.k_len[:] = 1, start + queries
    made.history[:] = [-1, -1, -1], history
    return made


@pytest.mark.parametrize(
    ("start", "history"),
    [(0, [-1, -1, -1]), (1, [-1, -1, 0]), (2, [-1, 7, 8]), (3, [7, 8, 9]), (900, [0, 0, 0])],
)
@pytest.mark.parametrize("queries", [0, 2])
def test_histories_of_the_ids_before_the_row(start: int, history: list[int], queries: int) -> None:
    batch = ForwardBatch.from_step(placed(start, history, queries), CPU)
    assert batch.history.tolist() == [[-1, -1, -1], history]


@pytest.mark.parametrize(
    ("start", "history"),
    [
        pytest.param(5, [6, 7, -1], id="the newest is not known"),
        pytest.param(5, [6, -1, -1], id="nor the one before"),
        pytest.param(5, [-1, -1, -1], id="none is known"),
        pytest.param(5, [6, -1, 8], id="one is missing"),
        pytest.param(5, [-1, 7, 8], id="cut off: no history on a prefix"),
        pytest.param(2, [-1, 7, -1], id="behind the sequence start"),
        pytest.param(1, [-1, 7, 8], id="an id before the sequence start"),
        pytest.param(0, [7, 8, 9], id="another sequence's ids"),
    ],
)
def test_trap_21_a_placeholder_in_a_history_is_refused(start: int, history: list[int]) -> None:
    """It would read as the sequence's start, and each hash over it as a row like any other."""
    ids = ", ".join(map(str, history))
    said = f"row 1 starts at position {start}, but the 3 ids before it are {ids}: -1 stands before the sequence start"
    with pytest.raises(ValueError, match=said):
        ForwardBatch.from_step(placed(start, history), CPU)
    buffer = BatchBuffer(placed(3, [7, 8, 9]), CPU)
    with pytest.raises(ValueError, match=said):
        buffer.fill(placed(start, history))
