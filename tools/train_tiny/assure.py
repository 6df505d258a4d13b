"""``assure``: fit the confidence head to the model's own greedy rounds, which ``draft`` never shows it.

Training follows the text of the corpus; a greedy continuation is more predictable, and drafts are accepted more often
than the head then says. Its one row of weights is fitted again, by logistic regression, to rounds behind places of the
calibration split, and held near the trained row in the directions that the rounds say little about.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from checkpoint_model import CheckpointModel, add_checkpoint_arguments, open_checkpoint
from decoding import Transcript, speculate
from drafts import LONGEST, SHORTEST
from manifest import recorded_corpus
from places import WORK
from saved import load_from, save_parameters
from torch import Tensor

NAME = "confidence_head.proj.weight"
_HOLD = 0.1
"""Weight of the squared distance to the trained row, each direction measured by the variance of its evidence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The exported checkpoint that drafts, and the training checkpoint that is read and written."""
    add_checkpoint_arguments(parser)
    parser.set_defaults(prompts=256)
    parser.add_argument("--training", type=Path, default=WORK / "drafted", help="training checkpoint, as draft left it")
    parser.add_argument("-o", "--out", type=Path, default=WORK / "assured", help="training checkpoint to write")


def run(arguments: argparse.Namespace) -> None:
    """Draft, fit, and write the training checkpoint with the new row; export it to use it."""
    checkpoint = open_checkpoint(arguments.checkpoint, policy=arguments.policy, rows=arguments.rows)
    ids = [checkpoint.encode(file.text) for file in recorded_corpus() if file.split == "calibration"]
    prompts = spread_prompts(ids, arguments.prompts)
    with watched(checkpoint) as evidence:
        drafted = speculate(checkpoint, prompts, arguments.tokens, rows=arguments.rows, eos=checkpoint.eos)
    asked, accepted = conditional_evidence(drafted, evidence)

    parameters = load_from(arguments.training, "draft")
    (name,) = (n for n in parameters if n.endswith(NAME))
    fitted, before, after = fit(parameters[name][0], asked, accepted)
    parameters[name] = fitted.unsqueeze(0)
    save_parameters(arguments.out, parameters.items())
    print(
        f"{len(accepted):,} drafts behind {len(prompts)} places of the calibration split: log loss {before:.4f} before,"
        f" {after:.4f} after; wrote {arguments.out}"
    )


def spread_prompts(ids: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """``count`` prompts of ``SHORTEST`` to ``LONGEST`` tokens, spread evenly over the joined ``ids``."""
    stream = np.concatenate([np.asarray(text, dtype=np.int64) for text in ids])
    starts = np.linspace(0, len(stream) - LONGEST, count, dtype=np.int64)
    lengths = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, count)
    return [stream[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]


class _Watched:
    """Operators that keep what the confidence head is multiplied with, and the logits, in the order of the calls."""

    def __init__(self, operators: Any, head: object) -> None:
        self._operators, self._head = operators, head
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operators, name)

    def linear(self, x: Tensor, matrix: Any) -> Tensor:
        result: Tensor = self._operators.linear(x, matrix)
        if matrix is self._head:
            self.calls.append((x.clone(), result.squeeze(1).clone()))
        return result


@contextmanager
def watched(checkpoint: CheckpointModel) -> Iterator[dict[tuple[float, ...], Tensor]]:
    """Filled at the end: the evidence [nextn, width] of each round, by the logits that the round keeps."""
    drafter = checkpoint.model.drafter
    assert drafter is not None
    plain = drafter.operators
    found: dict[tuple[float, ...], Tensor] = {}
    drafter.operators = watch = _Watched(plain, drafter.confidence_head)
    try:
        yield found
    finally:
        drafter.operators = plain
    for first in range(0, len(watch.calls), checkpoint.nextn):
        block = watch.calls[first : first + checkpoint.nextn]
        evidence, logits = (torch.stack(parts, 1) for parts in zip(*block, strict=True))
        found.update(zip(map(tuple, logits.tolist()), evidence, strict=True))


def conditional_evidence(
    transcripts: Sequence[Transcript], evidence: dict[tuple[float, ...], Tensor]
) -> tuple[Tensor, Tensor]:
    """Evidence [N, width] of the drafts whose predecessors were all accepted, and float64 [N] whether they were too."""
    rows, labels = [], []
    for turn in (turn for transcript in transcripts for turn in transcript.rounds):
        asked = min(turn.accepted + 1, turn.observed)
        rows.append(evidence[turn.confidence_logits][:asked])
        labels += [float(k < turn.accepted) for k in range(asked)]
    return torch.cat(rows), torch.tensor(labels, dtype=torch.float64)


def fit(trained: Tensor, evidence: Tensor, accepted: Tensor) -> tuple[Tensor, float, float]:
    """The new row [width], and the log loss of ``evidence`` [N, width] with the trained row and with the new one."""
    x, start = evidence.double(), trained.double()
    spread = x.var(0)
    row = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([row], max_iter=500, line_search_fn="strong_wolfe")

    def loss(weights: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x @ weights, accepted)

    def objective() -> Tensor:
        optimizer.zero_grad()
        value = loss(row) + _HOLD * (spread * (row - start).square()).sum()
        torch.autograd.backward(value)
        return value

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return row.detach().float(), loss(start).item(), loss(row).item()
