"""A group of ranks around pairs of schedulers, and a device that makes results up.

What happens is drawn from one ``random.Random``: events between any two calls, tokens, accepted lengths, confidences
(few different ones, so that ties are frequent), and whether results come at once or one step late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.comparison import Pair, Refused
from reference.records import DECODE, DONE, FAIL, IDLE, PREFILL, VOTE
from reference.scheduler import Scheduler

VOCABULARY = 7
CONFIDENCES = (0, 1, 20_000, 50_000, 65_534, 65_535)


@dataclass(slots=True)
class Frame:
    """A step on the device, with its results."""

    step_id: int
    decode: bool
    tokens: Any
    counts: Any
    confidences: Any


class Rank:
    """One rank: both schedulers, its device, and the ids that a caller would know."""

    def __init__(self, pair: Pair, constants: Mapping[str, Any], rng: random.Random) -> None:
        self.pair, self.constants, self.rng = pair, constants, rng
        self.nextn, self.max_q = constants["kNextn"], constants["kMaxQ"]
        self.frames: list[Frame] = []
        self.decode_confidences: Any = np.zeros((0, self.nextn), np.uint16)  # of the last decode step
        self.known: list[int] = []  # ids that came and whose end was not collected
        self.gone: list[int] = []
        self.next_id = 1
        self.flags: list[int] | None = None

    def try_call(self, method: str, *arguments: Any) -> bool:
        """Whether both accept the call."""
        try:
            self.pair.call(method, *arguments)
        except Refused:
            return False
        return True

    def execute(self) -> None:
        """Run the step that was scheduled: its results are kept until they are committed."""
        step, rng = self.pair.step(), self.rng
        rows = step.num_rows
        q_len = step.q_len[:rows].tolist()
        if step.provisional:
            newest = self.decode_confidences
            rows_before = [newest[r] if r >= 0 else np.zeros(self.nextn, np.uint16) for r in step.remap[:rows]]
            matrix = np.array(rows_before, np.uint16).reshape(rows, self.nextn)
            q_len = self.pair.call("split", step.caps, matrix, step.total_q)[1]
        tokens = np.full((rows, self.max_q), -1, np.int32)
        counts = np.zeros(rows, np.int32)
        confidences = np.array([rng.choice(CONFIDENCES) for _ in range(rows * self.nextn)], np.uint16)
        confidences = confidences.reshape(rows, self.nextn)
        for row in range(rows):
            if step.samples[row]:
                counts[row] = rng.choice((1, rng.randint(1, q_len[row]), q_len[row])) if step.kind == 2 else 1
                drafts = rng.choice((0, self.nextn, rng.randint(0, self.nextn))) if step.kind == 1 else 0
                filled = counts[row] + drafts
                tokens[row, :filled] = [rng.randrange(VOCABULARY) for _ in range(filled)]
        if step.kind == 2:
            self.decode_confidences = confidences
        self.frames.append(Frame(step.step_id, step.kind == 2, tokens, counts, confidences))

    def commit(self) -> None:
        frame = self.frames.pop(0)
        self.pair.call("commit", frame.step_id, frame.tokens, frame.counts, frame.confidences)

    def bad_commit(self) -> None:
        """Results that are of no step, or that do not add up: refused, and nothing changes."""
        frame = self.frames[0]
        step_id, counts = frame.step_id, frame.counts.copy()
        rows = self.pair.reference.state.frames[0].rows
        if self.rng.random() < 0.5 and any(row.sequence.alive for row in rows):
            counts[:] = self.rng.choice((-1, self.max_q + 1))
        else:
            step_id += self.rng.choice((-1, 1, 100))
        assert not self.try_call("commit", step_id, frame.tokens, counts, frame.confidences)

    def collect(self) -> None:
        (_, ended) = self.pair.call("outcomes")["ids"]
        self.gone += ended
        self.known = [i for i in self.known if i not in ended]


class Lockstep:
    """``ranks`` pairs in one group. ``make`` gives the scheduler that is compared with the reference."""

    def __init__(
        self,
        make: Callable[[], Any],
        constants: Mapping[str, Any],
        *,
        ranks: int,
        rng: random.Random,
        curve: list[float] | None = None,
        event: Callable[[Lockstep], None] = lambda world: None,
    ) -> None:
        self.constants, self.rng, self.event = constants, rng, event
        pairs = [Pair(make(), Scheduler(constants), str(index)) for index in range(ranks)]
        self.ranks = [Rank(pair, constants, rng) for pair in pairs]
        self.record: list[int] | None = None
        self.late = rng.random() < 0.6  # whether decode results may come one step late
        self.failed = False
        self.counts = dict.fromkeys((PREFILL, DECODE, IDLE, DONE, FAIL), 0)
        if constants.get("kVarlen"):
            for rank in self.ranks:
                rank.pair.call("set_cost_curve", np.array(curve or self._curve()))

    def _curve(self) -> list[float]:
        """Milliseconds of each graph: steps of very different height, so that cutting drafts often pays."""
        value, curve = 1.0, []
        for _ in self.constants["kGraphSizes"]:
            value += self.rng.choice((0.0, 0.125, 0.5, 2.0))
            curve.append(value)
        return curve

    def step(self) -> int:
        """One step of the group, with events wherever one may come."""
        record = self._reduced_record()
        actions = [int(rank.pair.call("begin_step", record)) for rank in self.ranks]
        for _ in range(2):
            self.event(self)
            if actions[0] != VOTE:
                break
            votes = [rank.pair.call("vote")[1] for rank in self.ranks]
            reduced = np.array(votes, np.int32).max(axis=0)
            self.event(self)
            actions = [int(rank.pair.call("resolve_vote", reduced)) for rank in self.ranks]
        assert len(set(actions)) == 1, f"I2: one action on all ranks, not {actions}"
        action = actions[0]
        assert action != VOTE, "I5: at most two rounds"
        self.counts[action] += 1
        for rank in self.ranks:
            rank.pair.call("decision")
        self._finish(action)
        return action

    def _finish(self, action: int) -> None:
        if action == FAIL:
            self.failed = True
            self._same_reasons()
            return
        for rank in self.ranks:
            if action in (PREFILL, DECODE):
                rank.execute()
            else:
                rank.pair.step()
            rank.pair.call("flags")
        self.event(self)
        exchanged = action in (PREFILL, DECODE) or (action == IDLE and self.constants["kEngineType"] != "NORMAL")
        for rank in self.ranks:
            rank.flags = rank.pair.call("flags")[1] if exchanged else None
        self._commit_due()

    def _commit_due(self) -> None:
        """All results, or all but a last decode step's."""
        keep_last = self.late and self.rng.random() < 0.8
        for rank in self.ranks:
            while rank.frames and (len(rank.frames) > 1 or not rank.frames[0].decode or not keep_last):
                self.event(self)
                if self.rng.random() < 0.05:
                    rank.bad_commit()
                rank.commit()
                rank.pair.call("flags")
                if self.rng.random() < 0.7:
                    rank.collect()

    def _reduced_record(self) -> list[int] | None:
        """A group of one rank takes its record only now, when it knows what the last commit ended."""
        self.event(self)
        if len(self.ranks) == 1 and self.ranks[0].flags is not None:
            self.ranks[0].flags = self.ranks[0].pair.call("flags")[1]
        records = [rank.flags for rank in self.ranks if rank.flags is not None]
        return np.array(records, np.int32).max(axis=0) if records else None

    def _same_reasons(self) -> None:
        for rank in self.ranks:
            real, expected = rank.pair.scheduler.fail_reason(), rank.pair.reference.fail_reason()
            assert real, "a failure has a reason"
            assert real.startswith("stalled:") == expected.startswith("stalled:"), (real, expected)
