"""Verification lengths are lossless, by simulation: what counting out cannot reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from lossless_toys import confidence
from numpy.typing import NDArray
from verification_model import Row
from verification_policy import Policy

from deepinfer_gen.runtime.random_numbers import Purpose, uniforms

TOY = 10  # two rows of three drafts, a graph of every size
RUNS = 400_000
TARGET_A = 0.7
FOUR_ROWS = 11  # four rows of three drafts, a graph of every size
Tokens = NDArray[np.int64]


def drafts_by_history() -> NDArray[np.int64]:
    """Drafts that a row verifies when its last drafts were [none, with A second, with B second].

    Draft 3 follows the second draft's value: after A it survives, after B never. All but the first history choose
    everything or nothing, and the prior nothing, so that drafts are cut off and drafted again.
    """
    policy = Policy(TOY)
    policy.set_curve([1.0, 2.0, 1 / 0.38, 1 / 0.33, *[1000.0] * 4])
    histories = [None, *([confidence(c) for c in (0.8, 0.9, third)] for third in (0.95, 0.0))]
    return np.array([policy.choose([Row(3, history)], policy.config.max_total_q)[0] for history in histories])


@dataclass(frozen=True)
class Numbers:
    """Random numbers of many runs; ``turns`` is the verify round or, for the wrong key, the first free position."""

    seeds: NDArray[np.uint64]
    turns: Tokens
    by_round: bool

    def draw(self, offset: int | Tokens, purpose: Purpose) -> NDArray[np.float64]:
        if self.by_round:
            return uniforms(self.seeds, self.turns, purpose=purpose, offset=offset)
        return uniforms(self.seeds, self.turns + offset, purpose=purpose)


def share_of_a(*, by_round: bool, positions: int) -> list[float]:
    """How often each of the first positions holds A, over all runs; random numbers keyed by round or by position."""
    verified = drafts_by_history()
    found = np.zeros(positions, np.int64)
    seeds, emitted, history = np.arange(RUNS, dtype=np.uint64), np.zeros(RUNS, np.int64), np.zeros(RUNS, np.int64)
    for turn in range(positions):
        draw = Numbers(seeds, np.full_like(emitted, turn) if by_round else emitted, by_round).draw
        is_a = np.stack([draw(k, Purpose.DRAFT) < 0.5 for k in range(3)])
        count, accepted, alive = verified[history], np.zeros_like(emitted), np.ones(len(seeds), bool)
        for k in range(int(count.max())):
            # A is always accepted: its target probability exceeds that of the draft. B is with 0.3 / 0.5.
            alive &= (k < count) & (is_a[k] | (draw(k, Purpose.ACCEPT) < 0.6))
            accepted += alive
        own_a = draw(accepted, Purpose.RESIDUAL_OR_BONUS) < TARGET_A
        last_a = (accepted < count) | own_a  # what replaces a rejected draft is always A
        for position in range(positions):
            offset = position - emitted
            inside = (offset >= 0) & (offset <= accepted)
            token = np.where(offset == accepted, last_a, np.take_along_axis(is_a, np.clip(offset, 0, 2)[None], 0)[0])
            found[position] += int((inside & token).sum())
        emitted, history = emitted + accepted + 1, np.where(is_a[1], 1, 2)
        unfinished = emitted < positions
        seeds, emitted, history = seeds[unfinished], emitted[unfinished], history[unfinished]
    return [int(n) / RUNS for n in found]


@pytest.mark.parametrize("by_round", [True, False])
def test_r3_numbers_keyed_by_round_are_never_used_twice(by_round: bool) -> None:
    """By position, a draft that was cut off is drawn again, and its confidence has chosen the total."""
    assert drafts_by_history().tolist() == [0, 3, 0]
    three_sigma = 3 * (TARGET_A * (1 - TARGET_A) / RUNS) ** 0.5
    errors = [abs(share - TARGET_A) for share in share_of_a(by_round=by_round, positions=3)]
    assert (max(errors) < three_sigma) == by_round
    assert errors[0] < three_sigma


VOCABULARY, ROWS, NEXTN = 4, 4, 3
WORLDS, ROUNDS = 2500, 100
TARGET = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.05, 0.05, 0.6, 0.3]])
DRAFTER = np.array([[0.4, 0.3, 0.2, 0.1], [0.65, 0.15, 0.1, 0.1], [0.2, 0.25, 0.25, 0.3], [0.7, 0.2, 0.05, 0.05]])
AGREEMENT = np.round(np.minimum(TARGET, DRAFTER).sum(1) * 65535).astype(np.int64)
"""Confidence of a draft by the token before it: what is accepted of it on average."""
CURVE = np.array([1.0, 2.0, 3.0, 4.0, *(9.1 + 0.1 * extra for extra in range(ROWS * NEXTN))])
"""Milliseconds of 1 to 16 tokens. The first draft is dear and the others cheap, so that it hangs on what follows it."""
PRIOR = 52428


def survivals(confidences: Tokens) -> Tokens:
    """[worlds, rows, drafts] to the same."""
    result, survival = np.empty_like(confidences), np.full(confidences.shape[:-1], 65536)
    for k in range(confidences.shape[-1]):
        survival = survival * confidences[..., k] >> 16
        result[..., k] = survival
    return result


def lengths(before: Tokens, newest: Tokens) -> Tokens:
    """Drafts that each row verifies, [worlds, rows]: all worlds at once, every size a graph."""
    worlds = len(before)
    ranked = -np.sort(-survivals(before).reshape(worlds, -1), axis=1)
    expected = ROWS + np.concatenate([np.zeros((worlds, 1), np.int64), np.cumsum(ranked, axis=1)], axis=1) / 65536
    count = np.argmax(expected / CURVE[ROWS - 1 :], axis=1)
    turn = np.arange(NEXTN) * ROWS + np.arange(ROWS)[:, None]
    keys = survivals(newest) * (ROWS * NEXTN) + (ROWS * NEXTN - 1 - turn)
    rank = np.argsort(np.argsort(-keys.reshape(worlds, -1), axis=1), axis=1).reshape(keys.shape)
    return (rank < count[:, None, None]).sum(2)


@dataclass
class Sampler:
    """Draws tokens of many rows at once from rows of a table of probabilities."""

    rng: np.random.Generator

    def draw(self, probabilities: NDArray[np.float64]) -> Tokens:
        cumulative = np.cumsum(probabilities, axis=-1)
        return (self.rng.random(probabilities.shape[:-1])[..., None] * cumulative[..., -1:] >= cumulative).sum(-1)


def transitions(*, lagged: bool) -> Tokens:
    """How often each token followed each other one, over a million verified rows."""
    rng = np.random.default_rng(11)
    sampler = Sampler(rng)
    last = rng.integers(VOCABULARY, size=(WORLDS, ROWS))
    before = np.full((WORLDS, ROWS, NEXTN), PRIOR)
    seen = np.zeros((VOCABULARY, VOCABULARY), np.int64)
    for _ in range(ROUNDS):
        drafts = [last]
        for _ in range(NEXTN):
            drafts.append(sampler.draw(DRAFTER[drafts[-1]]))
        newest = AGREEMENT[np.stack(drafts[:-1], 2)]
        count = lengths(before if lagged else newest, newest)
        before, alive, context = newest, np.ones_like(last, bool), last
        for k in range(NEXTN + 1):
            # Rows that still verify draft k accept it, or replace it; rows that have verified all draw a bonus.
            verifies = alive & (k < count)
            draft = drafts[min(k + 1, NEXTN)]
            target, drafter = TARGET[context], DRAFTER[context]
            ratio = np.take_along_axis(target / drafter, draft[..., None], 2)[..., 0]
            accepted = verifies & (rng.random(last.shape) < ratio)
            residual = np.maximum(target - drafter, 0)
            token = np.where(accepted, draft, sampler.draw(np.where(verifies[..., None], residual, target)))
            np.add.at(seen, (context[alive], token[alive]), 1)
            context = np.where(alive, token, context)
            alive = accepted
        last = context
    return seen


def chi_square(seen: Tokens) -> float:
    expected = seen.sum(1, keepdims=True) * TARGET
    return float(((seen - expected) ** 2 / expected).sum())


def test_a_million_rounds_have_the_targets_transitions() -> None:
    """Chi-square with 12 degrees of freedom: 39.1 is exceeded once in ten thousand."""
    assert WORLDS * ROUNDS * ROWS == 1_000_000
    assert chi_square(transitions(lagged=True)) < 39.1


def test_a_million_rounds_show_a_total_that_knows_its_drafts() -> None:
    assert chi_square(transitions(lagged=False)) > 1000


def test_the_simulated_lengths_are_those_of_the_compiled_policy() -> None:
    rng = np.random.default_rng(2)
    policy = Policy(FOUR_ROWS)
    policy.set_curve(CURVE.tolist())
    before, newest = (AGREEMENT[rng.integers(VOCABULARY, size=(300, ROWS, NEXTN))] for _ in range(2))
    found = lengths(before, newest)
    assert len(np.unique(found.sum(1))) > 3
    for b, n, drafts in zip(before.tolist(), newest.tolist(), found.tolist(), strict=True):
        rows = [Row(NEXTN, known, new) for known, new in zip(b, n, strict=True)]
        assert policy.choose(rows, ROWS * (NEXTN + 1)) == drafts
