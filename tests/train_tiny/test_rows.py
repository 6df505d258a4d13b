"""Rows of training: fixed by a seed, anew in every epoch, and those that look like the model's use."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rows import Rows, load_tokens, whole_rows
from tables import Tables
from usage_rows import UsageRows, loop_loss, usage_losses

STREAM = np.arange(1000, dtype=np.uint16)
BREAK, BREAKS, HEAD, INDENT = 1, 2, 3, 4
"""Ids of a line break with indentation, of nothing but line breaks, of ``def``, of another word."""


def test_rows_are_the_same_whenever_asked_for() -> None:
    """By another object, in another order: a run that starts again in the middle meets the rows it would have met."""
    first, again = (Rows(STREAM, length=10, batch=4, seed=3) for _ in range(2))
    straight = [first.at(step) for step in range(60)]
    backwards = {step: again.at(step) for step in reversed(range(60))}
    assert all(np.array_equal(straight[step], backwards[step]) for step in range(60))
    assert not np.array_equal(straight[0], Rows(STREAM, 10, 4, seed=4).at(0))
    assert straight[0].dtype == np.int64


def test_an_epoch_covers_its_rows_once_and_the_next_cuts_anew() -> None:
    """1,000 ids in rows of 10: 99 whole rows with the id after each, 98 for any shift, 24 batches of 4."""
    rows = Rows(STREAM, length=10, batch=4, seed=0)
    assert rows.steps_per_epoch == 24
    shifts = []
    for epoch in range(4):
        met = np.concatenate([rows.at(epoch * 24 + step) for step in range(24)])
        assert met.shape == (96, 11)
        assert np.array_equal(met, met[:, :1] + np.arange(11))  # consecutive ids of the stream
        (shift,) = set((met[:, 0] % 10).tolist())
        shifts.append(shift)
        assert len(set(met[:, 0].tolist())) == 96
        assert met.min() >= 0
    assert len(set(shifts)) > 1
    assert met[:, 0].tolist() != sorted(met[:, 0].tolist())


@pytest.mark.parametrize("size", [50, 51, 52, 60, 61, 99])
def test_the_largest_shift_still_fills_every_step(size: int) -> None:
    for seed in range(20):
        rows = Rows(STREAM[:size], length=10, batch=2, seed=seed)
        assert all(rows.at(step).shape == (2, 11) for step in range(2 * rows.steps_per_epoch))


def test_whole_rows_by_hand() -> None:
    """23 ids in rows of 5: four rows with the id after each; batches of 3 leave one out."""
    batches = whole_rows(STREAM[:23], length=5, batch=3)
    assert batches.tolist() == [[[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 10], [10, 11, 12, 13, 14, 15]]]
    assert whole_rows(STREAM[:21], length=5, batch=2).shape == (2, 2, 6)
    assert whole_rows(STREAM[:20], length=5, batch=2).shape == (1, 2, 6)


def test_tokens_are_those_of_the_split(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens-train.npy", STREAM)
    np.save(tmp_path / "tokens-calibration.npy", STREAM[:7])
    assert load_tokens(tmp_path, "calibration").tolist() == list(range(7))


@pytest.fixture(scope="module")
def stream() -> npt.NDArray[np.uint16]:
    """Lines of 5 to 20 ids; every seventh is a head, half of these at the margin, where the break is a token alone."""
    random = np.random.default_rng(0)
    ids: list[int] = []
    for line in range(500):
        ids.append(BREAKS if line % 14 == 0 else BREAK)
        ids.append(HEAD if line % 7 == 0 else INDENT)
        ids += random.integers(10, 200, random.integers(3, 19)).tolist()
    return np.array(ids, dtype=np.uint16)


@pytest.fixture(scope="module")
def usage(stream: npt.NDArray[np.uint16]) -> UsageRows:
    ids = torch.arange(200)
    tables = Tables(ids, (ids == BREAK) | (ids == BREAKS), ids == BREAKS, ids == HEAD, {})
    return UsageRows(Rows(stream, length=256, batch=16, seed=5), tables)


def test_a_loop_repeats_whole_lines_to_the_end(usage: UsageRows, stream: npt.NDArray[np.uint16]) -> None:
    """The first quarter: context, then one to three lines again and again; the last two columns say where."""
    text = stream.tolist()
    rounds = set()
    for step in range(20):
        for row in usage.at(step)[:4]:
            *ids, start, length = row.tolist()
            assert len(ids) == 257
            assert 4 <= length <= 96
            assert 16 <= start <= 0.4 * 257
            assert ids[start] in (BREAK, BREAKS)
            once = ids[start : start + length]
            assert all(ids[place] == once[(place - start) % length] for place in range(start, 257))
            rounds.add(sum(token in (BREAK, BREAKS) for token in once))
            # What comes before and the first round stand in the corpus one behind the other.
            assert _places(ids[: start + length], text)
    assert rounds == {1, 2, 3}


def test_heads_and_plain_rows_follow(usage: UsageRows, stream: npt.NDArray[np.uint16]) -> None:
    """Three eighths begin with a head, with its line break or, at the margin, in half of the cases without."""
    text = stream.tolist()
    begins: dict[tuple[int, ...], int] = {}
    for step in range(40):
        rows = usage.at(step)
        assert rows.shape == (16, 259)
        assert not rows[4:, -2:].any()
        for row in rows[4:10, :-2].tolist():
            begin = (HEAD,) if row[0] == HEAD else (row[0], row[1])
            begins[begin] = begins.get(begin, 0) + 1
            (place,) = _places(row, text)
            assert len(begin) == 2 or text[place - 1] == BREAKS
        assert np.array_equal(rows[10:, :-2], usage.plain.at(step)[10:])
    assert begins.keys() == {(HEAD,), (BREAK, HEAD), (BREAKS, HEAD)}
    bare, with_break = begins[(HEAD,)], begins[(BREAKS, HEAD)]
    assert 0.3 < bare / (bare + with_break) < 0.7


def test_usage_rows_are_the_same_whenever_asked_for(usage: UsageRows) -> None:
    later = [usage.at(step) for step in (7, 3, 7)]
    assert np.array_equal(later[0], later[2])
    assert not np.array_equal(later[0], later[1])


def test_loop_loss_is_that_of_a_plain_loop() -> None:
    """-ln(1 - |p(t) - p(t - round) / 2|), where the earlier p is a constant."""
    entropy = (torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) * 3).requires_grad_()
    nats = entropy.tolist()
    lengths = torch.tensor([2, 5, 1])
    found = loop_loss(entropy, lengths)
    for b, length in enumerate(lengths.tolist()):
        for t in range(length, 12):
            now, before = (math.exp(-nats[b][place]) for place in (t, t - length))
            assert found[b, t].item() == pytest.approx(-math.log(1 + 1e-6 - abs(now - before / 2)), abs=1e-5)
    found[0, 6].backward()
    assert entropy.grad is not None
    assert entropy.grad.nonzero().tolist() == [[0, 6]]


def test_usage_losses_take_each_rows_own_part() -> None:
    """Row 0 has no loop; in row 1 a loop of 3 begins at id 4, so ids 7 and on repeat, which rows 6 and on predict."""
    entropy = torch.rand(2, 12, generator=torch.Generator().manual_seed(1)) * 3
    starts, lengths = torch.tensor([0, 4]), torch.tensor([0, 3])
    plain, loop = usage_losses(entropy, starts, lengths)
    assert float(plain) == pytest.approx(float(entropy[0].mean()), rel=1e-6)
    assert float(loop) == pytest.approx(float(loop_loss(entropy, lengths)[1, 6:].mean()), rel=1e-6)


def _places(part: list[int], text: list[int]) -> list[int]:
    return [i for i in range(len(text)) if text[i] == part[0] and text[i : i + len(part)] == part]
