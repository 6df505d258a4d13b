"""One rank: a real scheduler, the device it drives, and its requests as their caller sees them."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scheduler_device import LENGTH, STOP, Device, Expected, token_at


class Rank:
    """Every step is executed when it is scheduled; its results wait in ``uncommitted``."""

    def __init__(self, module: ModuleType) -> None:
        self.constants: dict[str, Any] = module.constants()
        self.scheduler = module.Scheduler()
        if self.constants.get("kVarlen"):
            self.scheduler.set_cost_curve(np.arange(1.0, 1 + len(self.constants["kGraphSizes"])))
        self.initial = self.scheduler.fingerprint()
        self.device = Device(self.constants["kBlockSize"], self.constants["kNextn"])
        self.requests: dict[int, Expected] = {}
        self.known: dict[int, int] = {}  # request -> tokens whose ids the device knows
        self.drafts: dict[int, list[int]] = {}  # request -> drafts that came with its prompt
        self.last_decode: list[int] = []
        self.confidences: Any = None  # of the last decode step
        self.uncommitted: list[tuple[int, Any, Any, Any]] = []  # step id, tokens, counts, confidences
        self.loads: list[int] = []  # requests whose cache is to be filled

    # Calls

    def add(
        self, request: int, length: int, max_tokens: int, min_tokens: int = 0, end_ids: list[int] | None = None,
        checkpoints: list[int] | None = None, spans: list[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        prompt = [token_at(request, p) for p in range(length)]
        expected = Expected(request, prompt, max_tokens, min_tokens, end_ids or [])
        more = np.array(checkpoints or [], np.int32), np.array(spans or [], np.int32).reshape(-1, 2)
        ends = np.array(expected.end_ids, np.int32)
        self.scheduler.add(request, np.array(prompt, np.int32), max_tokens, min_tokens, ends, *more)
        self.requests[request] = expected

    def add_prompted(self, request: int, prompt_length: int, given: int = 1, max_tokens: int = 9) -> None:
        tokens = [token_at(request, p) for p in range(prompt_length + given)]
        expected = Expected(request, tokens[:prompt_length], max_tokens, 0, [], given=tokens[prompt_length:])
        expected.output = list(expected.given)
        none = np.array([], np.int32)
        self.scheduler.add_prompted(request, np.array(tokens, np.int32), prompt_length, max_tokens, 0, none)
        self.requests[request] = expected

    def fork(self, parent: int, children: list[int]) -> None:
        self.scheduler.fork(parent, np.array(children, np.uint64))
        origin = self.requests[parent]
        for child in children:
            given = list(origin.output)
            branch = Expected(child, origin.prompt, origin.max_tokens, origin.min_tokens, origin.end_ids, given)
            branch.output = list(given)
            self.requests[child] = branch
            self.known[child] = branch.length

    def finish(self, request: int, reason: int) -> None:
        if self.requests[request].reason:
            with pytest.raises(ValueError, match=f"request {request}: it was never added, or its end was reported"):
                self.scheduler.finish(request, reason)
            return
        self.requests[request].ended_by_caller = True
        self.scheduler.finish(request, reason)
        self.collect()

    def prompt_token(self, request: int, position: int) -> int:
        """The id at ``position``, -1 before the sequence's start."""
        return self.requests[request].prompt[position] if position >= 0 else -1

    def fill_loads(self) -> None:
        """Write the caches of the requests that were admitted, and say so."""
        for request in self.loads:
            expected = self.requests[request]
            if not expected.reason:
                self.fill(request)
                self.known[request] = expected.length
            self.scheduler.end_transfer(request)
        self.loads = []

    def fill(self, request: int) -> None:
        expected, slot = self.requests[request], self.scheduler.slot(request)
        self.device.slots[slot] = {}
        blocks = self.scheduler.blocks(request).tolist()
        computed = expected.length - 1
        self.device.write(expected, blocks, slot, range(computed), computed)

    # Steps

    def execute(self, rng: random.Random) -> Any:
        """Run the current step on the device and keep its results for ``commit_oldest``."""
        step = self.scheduler.step()
        nextn = self.constants["kNextn"]
        tokens = np.full((step.num_rows, self.constants["kMaxQ"]), -1, np.int32)
        counts = np.zeros(step.num_rows, np.int32)
        confidences = np.array([rng.randrange(65536) for _ in range(step.num_rows * nextn)], np.uint16)
        confidences = confidences.reshape(step.num_rows, nextn)
        self.device.prepare(step)
        queries = self.split_again(step)
        for row in range(step.num_rows):
            expected, q_len, slot = self.requests[int(step.ids[row])], queries[row], int(step.slot[row])
            assert slot > 0, "I12: slot 0 is the dummy"
            assert (step.kind == 1 and step.k_len[row] == step.q_len[row]) == (slot in step.zero_states.tolist())
            start = self.check_row(step, row)
            table = self.check_table(step, row)
            self.device.read(expected, table, slot, start)
            if step.samples[row]:
                counts[row] = rng.randint(1, q_len) if step.kind == 2 else 1
            accepted = start + (int(counts[row]) if step.kind == 2 else q_len)
            self.device.write(expected, table, slot, range(start, start + q_len), accepted)
            if step.samples[row]:
                self.known[expected.request] = accepted + 1
                first = accepted + 1 - int(counts[row])
                tokens[row, : counts[row]] = [expected.token(first + j) for j in range(counts[row])]
                if step.kind == 1:
                    self.draw_drafts(rng, expected.request, tokens[row, 1:])
        if step.kind == 2:
            self.check_order(step)
            self.last_decode = step.ids[: step.num_rows].tolist()
            self.confidences = confidences
        self.loads += step.loads.tolist()
        self.uncommitted.append((step.step_id, tokens, counts, confidences))
        return step

    def draw_drafts(self, rng: random.Random, request: int, columns: Any) -> None:
        """Drafts behind the prompt; their ids are of no request, so that they show where they are used."""
        count = rng.choice([0, len(columns)])
        columns[:count] = [1000 + request * 10 + j for j in range(count)]
        self.drafts[request] = columns[:count].tolist()

    def split_again(self, step: Any) -> list[int]:
        """The queries of each row: the device splits a provisional step again, by its newest confidences."""
        queries: list[int] = step.q_len[: step.num_rows].tolist()
        if not step.provisional:
            return queries
        nothing = np.zeros(self.constants["kNextn"], np.uint16)
        newest = [self.confidences[r] if r >= 0 else nothing for r in step.remap[: step.num_rows].tolist()]
        again = self.scheduler.split(step.caps, np.array(newest, np.uint16), step.total_q).tolist()
        assert sum(again) == step.total_q, "I14: the device may move drafts, not their number"
        return again

    def check_row(self, step: Any, row: int) -> int:
        """Check the row's inputs; returns the position of its first query as the device knows it."""
        request, q_len, k_len = int(step.ids[row]), int(step.q_len[row]), int(step.k_len[row])
        expected = self.requests[request]
        offset = int(step.q_len[:row].sum())
        planned = k_len - q_len
        assert step.positions[offset : offset + q_len].tolist() == list(range(planned, k_len))
        assert (step.row_of_token[offset : offset + q_len] == row).all()
        remap = int(step.remap[row])
        assert remap == (self.last_decode.index(request) if step.kind == 2 and request in self.last_decode else -1)
        start = planned if step.kind == 1 else self.known[request] - 1
        drafts = self.drafts.pop(request, []) if step.kind == 2 else []
        for position, token in zip(range(planned, k_len), step.input_ids[offset : offset + q_len], strict=True):
            behind = position - expected.length
            if behind < 0:
                assert token == expected.token(position)
            elif remap < 0:
                assert token == drafts[behind], "I15, B3: without a remap the host writes the drafts of the prompt"
            else:
                assert token == 0
        assert start <= planned, "lengths are optimistic"
        if not self.uncommitted:
            assert start == planned
            count = self.constants["kHistory"]
            history = [expected.token(p) if p >= 0 else -1 for p in range(start - count, start)]
            assert step.history[row].tolist() == history
        return start

    def check_table(self, step: Any, row: int) -> list[int]:
        table: list[int] = step.block_table[row].tolist()
        used = sum(block != 0 for block in table)
        assert all(table[:used]), "I9: block 0 is never allocated"
        reach = int(step.k_len[row])
        if step.kind == 2:
            reach = int(step.k_len[row] - step.q_len[row]) + 1 + self.constants["kMaxQ"]
        assert used * self.constants["kBlockSize"] >= reach, "I13: blocks reach as far as the step may write"
        return table

    def check_order(self, step: Any) -> None:
        """Rows by committed length, the longest first."""
        lengths = [self.requests[i].length for i in step.ids[: step.num_rows].tolist()]
        assert lengths == sorted(lengths, reverse=True), "the longest first"

    def commit_oldest(self) -> None:
        step_id, tokens, counts, confidences = self.uncommitted.pop(0)
        result = self.scheduler.commit(step_id, tokens, counts, confidences)
        for row, request in enumerate(result.ids.tolist()):
            emitted = int(result.emitted[row])
            assert emitted <= counts[row]
            expected = self.requests[request]
            if emitted:
                assert expected.reason == 0, "I17: nothing after the end"
            expected.output += tokens[row, :emitted].tolist()
        self.collect()
        self.scheduler.check_invariants()

    def collect(self) -> None:
        ended = self.scheduler.outcomes()
        for request, reason, stop in zip(ended.ids.tolist(), ended.reasons.tolist(), ended.stop_tokens, strict=True):
            expected = self.requests[request]
            assert expected.reason == 0, "I20: exactly one terminal state"
            expected.reason = reason
            assert (stop == expected.output[-1]) if reason == STOP and not expected.ended_by_caller else (stop == -1)

    def holders(self) -> dict[int, list[int]]:
        """The blocks of every request that has a place."""
        found = {}
        for request, expected in self.requests.items():
            try:
                if not expected.reason:
                    found[request] = self.scheduler.blocks(request).tolist()
            except ValueError as error:
                if "it waits and has no blocks" not in str(error):
                    raise
        return found

    # The end

    def check_drained(self) -> None:
        """I20: nothing is left behind, and every request ended once, with its whole stream or a prefix of it."""
        stats = self.scheduler.stats()
        assert stats["free_blocks"] == self.constants["kNumBlocks"] - 1
        assert stats["free_slots"] == self.constants["kNumSlots"] - 1
        assert self.scheduler.fingerprint() == self.initial
        decodes = self.constants["kEngineType"] != "PROMPT"
        for expected in self.requests.values():
            full, reason = expected.full_output(self.constants["kMaxModelLen"], decodes)
            if expected.reason in (STOP, LENGTH) and not expected.ended_by_caller:
                assert (expected.output, expected.reason) == (full, reason)
            else:
                assert expected.reason != 0
                assert expected.output == full[: len(expected.output)]
