"""A rank of the scheduler's reference whose device completes each step, and looks at the n-grams that it runs on.

The ids of every request are kept in plain lists, from the calls and the results alone; what a step must see is read
from them. Results come at once or one step late, so that the host often does not know the newest ids.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from ngram_model import VOCABULARY, rows, window, windows
from reference.lockstep import Rank
from torch import Tensor

from deepinfer_gen.runtime.batch import ForwardBatch
from deepinfer_gen.runtime.kernels.reference.zos_fix import LastStep, PlannedRows, StepTokens, zos_fix

CPU = torch.device("cpu")


def tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, np.int64))


class NgramRank(Rank):
    """``seen`` counts what happened, so that a test can tell that it did."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.depth = self.constants["kHistory"]
        self.ids: dict[int, list[int]] = {}  # of each request, as far as results were committed
        self.prompt_drafts: dict[int, list[int]] = {}  # which a prefill step's commit brought
        self.in_flight: dict[int, list[int]] = {}  # tokens of the decode step that is not committed
        self.drafts: dict[int, list[int]] = {}  # which the last decode step left on the device
        self.last: LastStep | None = None
        self.seen: Counter[str] = Counter()

    def try_call(self, method: str, *arguments: Any) -> bool:
        accepted = super().try_call(method, *arguments)
        if accepted and method in ("add", "add_prompted"):
            self.ids[arguments[0]] = arguments[1].tolist()
        elif accepted and method == "fork":
            for child in arguments[1].tolist():
                self.ids[child] = list(self.ids[arguments[0]])
                self.seen["forks"] += 1
        return accepted

    def execute(self) -> None:
        step = self.pair.step()
        q_len = self._final_lengths(step)
        super().execute()
        if step.kind == 1:
            self._look_at_prefill(step)
        else:
            self._look_at_decode(step, q_len)

    def commit(self) -> None:
        frame = self.frames.pop(0)
        told = self.pair.call("commit", frame.step_id, frame.tokens, frame.counts, frame.confidences)
        for row, (request, emitted) in enumerate(zip(told["ids"][1], told["emitted"][1], strict=True)):
            tokens = frame.tokens[row].tolist()
            if emitted:
                self.ids[request] += tokens[:emitted]
            if emitted and not frame.decode:
                self.prompt_drafts[request] = [token for token in tokens[1:] if token >= 0]
        if not any(later.decode for later in self.frames):
            self.in_flight = {}
            self.last = self.last and self.last._replace(assumed=self.last.counts)

    def _final_lengths(self, step: Any) -> list[int]:
        """Queries of each row, padding rows too, as the device splits them."""
        q_len: list[int] = step.q_len.tolist()
        if step.provisional:
            newest = [self.decode_confidences[r] if r >= 0 else np.zeros(self.nextn) for r in step.remap]
            matrix = np.array(newest, np.uint16)[: step.num_rows].reshape(-1, self.nextn)
            q_len[: step.num_rows] = self.pair.call("split", step.caps, matrix, step.total_q)[1]
            self.seen["splits"] += 1
        return q_len

    def _look_at_prefill(self, step: Any) -> None:
        """All ids are known on the host: a chunk goes on from what the chunks before it left."""
        batch = ForwardBatch.from_step(step, CPU)
        lists = [self.ids[int(request)] for request in step.ids]
        starts = (step.k_len - step.q_len).tolist()
        self.seen["later chunks"] += sum(start > 0 for start in starts)
        self._compare(batch, lists, starts, step.q_len.tolist())

    def _look_at_decode(self, step: Any, q_len: list[int]) -> None:
        real, remap = step.num_rows, step.remap.tolist()
        lists, starts = [], []
        for row in range(len(q_len)):
            request = int(step.ids[row])
            if row >= real:
                lists.append([0] * q_len[row])
                starts.append(0)
                continue
            ids = self.ids[request] + (self.in_flight.get(request, []) if remap[row] >= 0 else [])
            drafts = self.drafts[request] if remap[row] >= 0 else self.prompt_drafts.get(request, [])
            lists.append(ids + drafts)
            starts.append(len(ids) - 1)
        fixed, q_start = self._complete(step, q_len)
        batch = ForwardBatch(
            fixed.input_ids, fixed.positions, fixed.row_of_token, q_start, tensor(q_len), fixed.k_len,
            tensor(step.prefill_len), tensor(step.slot), tensor(step.block_table), fixed.history, prefills=False,
        )  # fmt: skip
        self._compare(batch, lists, starts, q_len)
        self._check_the_hosts_history(step)
        self._keep(step, fixed, q_start)

    def _complete(self, step: Any, q_len: list[int]) -> tuple[StepTokens, Tensor]:
        """The step as it runs, from the scheduler's arrays; and where each row's queries begin."""
        tokens, first = np.zeros((len(q_len), self.max_q), np.int64), 0
        for row, planned_count in enumerate(step.q_len.tolist()):
            tokens[row, :planned_count] = step.input_ids[first : first + planned_count]
            first += planned_count
            # Only rows with drafts on the device grow in a second split: the host has written all ids of the others.
            assert step.remap[row] >= 0 or q_len[row] <= planned_count
        lengths = tensor(q_len)
        q_start = lengths.cumsum(0) - lengths
        planned = PlannedRows(
            tensor(step.remap), tensor(step.k_len - step.q_len), q_start, lengths, tensor(tokens), tensor(step.history)
        )
        one = torch.ones(1, self.max_q + self.depth, dtype=torch.int64)  # before the first step nothing is remapped
        empty = LastStep(*[one[:, 0]] * 3, one[:, : self.max_q], one[:, : self.nextn], one[:, : self.depth])
        return zos_fix(planned, self.last or empty, sum(q_len)), q_start

    def _compare(self, batch: ForwardBatch, lists: list[list[int]], starts: list[int], q_len: list[int]) -> None:
        places = [(ids, s + i) for ids, s, n in zip(lists, starts, q_len, strict=True) for i in range(n)]
        assert batch.input_ids.tolist() == [ids[place] for ids, place in places]
        assert batch.positions.tolist() == [place for _, place in places]
        assert batch.k_len.tolist() == [s + n for s, n in zip(starts, q_len, strict=True)]
        found = windows(batch)
        expected = [window(ids, place, self.depth) for ids, place in places]
        assert found.tolist() == expected
        if expected:
            assert torch.equal(rows(found), rows(expected))
        before = (torch.tensor(starts, dtype=torch.int64).unsqueeze(1) - torch.arange(self.depth, 0, -1)) < 0
        assert torch.equal(batch.history < 0, before), "-1 stands before the sequence start only"

    def _check_the_hosts_history(self, step: Any) -> None:
        """Placeholders stand where the device knows better, nowhere else; a batch is not built from them."""
        start = (step.k_len - step.q_len)[:, np.newaxis]
        unknown = ((step.history < 0) & (start - np.arange(self.depth, 0, -1) >= 0)).any(axis=1)
        assert not (unknown & (step.remap < 0)).any()
        self.seen["placeholders"] += int(unknown.sum())
        if unknown.any():
            with pytest.raises(ValueError, match="-1 stands before the sequence start only"):
                ForwardBatch.from_step(step, CPU)
        else:
            ForwardBatch.from_step(step, CPU)

    def _keep(self, step: Any, fixed: StepTokens, q_start: Tensor) -> None:
        """What the step leaves on the device."""
        frame, count, real = self.frames[-1], len(step.remap), step.num_rows
        tokens, counts = np.zeros((count, self.max_q), np.int64), np.ones(count, np.int64)
        tokens[:real], counts[:real] = frame.tokens, frame.counts
        drafts = np.array([[self.rng.randrange(VOCABULARY) for _ in range(self.nextn)] for _ in range(count)], np.int64)
        assumed = np.ones(count, np.int64)
        assumed[:real] += step.caps
        if fixed.input_ids.numel():
            first = fixed.input_ids[q_start.clamp(max=fixed.input_ids.numel() - 1)]
            self.last = LastStep(
                tensor(assumed), tensor(counts), first, tensor(tokens), tensor(drafts.reshape(count, self.nextn)),
                fixed.history,
            )  # fmt: skip
        requests = [int(request) for request in step.ids[:real]]
        self.in_flight = {r: tokens[i, : counts[i]].tolist() for i, r in enumerate(requests)}
        self.drafts = {r: drafts[i].tolist() for i, r in enumerate(requests)}
        self.seen["decode rows"] += real
        self.seen["rejects"] += int((counts[:real] < 1 + step.caps).sum())
        self.seen["accepts"] += int((counts[:real] > 1).sum())
        self.seen["moved rows"] += sum(remap not in (-1, row) for row, remap in enumerate(step.remap[:real].tolist()))
