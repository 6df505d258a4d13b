"""The loop of the trainings: rates, evaluation, record of the curves, checkpoints, and the limit of time."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from argument_types import not_negative, positive
from captured import Step
from optimizer import Optimizer
from places import PRESET, WORK
from refusals import check_length, check_start, check_tile, not_finite, unreadable
from sizes import Sizes, read_sizes
from torch import Tensor


def add_common_arguments(parser: argparse.ArgumentParser, *, steps: int, lr: float) -> None:
    """The flags that all trainings have."""
    parser.add_argument("--work", type=Path, default=WORK, help="token files and checkpoints")
    parser.add_argument("--config", type=Path, default=PRESET / "config.json")
    parser.add_argument(
        "--start", type=not_negative, default=0, help="step to begin with; above 0 the checkpoint is read first"
    )
    parser.add_argument("--steps", type=positive, default=steps, help="step to end with, where the rate reaches 0")
    parser.add_argument("--seconds", type=float, default=None, help="stop and save when this time is over")
    parser.add_argument("--batch", type=positive, default=32, help="rows of a step")
    parser.add_argument("--length", type=positive, default=1024, help="tokens of a row")
    parser.add_argument("--lr", type=float, default=lr, help="highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=positive, default=250, help="steps between evaluations")
    parser.add_argument("--held-out", type=positive, default=None, help="evaluate on so many batches (default: all)")
    parser.add_argument("--seed", type=int, default=0)


def checked_sizes(arguments: argparse.Namespace) -> Sizes:
    """The sizes of ``--config``; ``InputError`` (DI442, DI446, DI447) where they or the other flags do not fit."""
    check_start(arguments)
    try:
        sizes = read_sizes(arguments.config)
    except (OSError, ValueError, KeyError) as fault:
        raise unreadable("the model's configuration", arguments.config, fault, "name a config.json") from fault
    check_length(sizes, arguments.length)
    check_tile(sizes)
    return sizes


@dataclass(frozen=True, slots=True)
class Schedule:
    """Fraction of the highest rate: a rise over ``warm_up`` steps from the start, level, then a straight fall to 0."""

    start: int
    steps: int
    warm_up: int = 100
    falling: float = 0.7

    def at(self, step: int) -> float:
        rise = (step + 1 - self.start) / self.warm_up
        fall = (self.steps - step) / (self.steps * self.falling)
        return max(0.0, min(1.0, rise, fall))


class RowSource(Protocol):
    """Ids of every step, int64 [batch, columns]."""

    def at(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of a step, the same whenever it is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Loop:
    """What differs between the trainings.

    ``step`` maps rows, ids [B, T + 1] and what a training adds to them, to figures and updates nothing but gradients
    and buffers; ``names`` are theirs.
    ``evaluate`` gives figures by name; ``save`` writes the checkpoint of a step.
    """

    names: Sequence[str]
    step: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    evaluate: Callable[[], dict[str, float]]
    save: Callable[[int], None]

    def run(self, arguments: argparse.Namespace, rows: RowSource, record: Path) -> None:
        """From ``start`` to ``steps`` or the end of the time; appends a JSON line to ``record`` at every evaluation."""
        began = time.monotonic()
        device = self.optimizer.parameters[0].device
        schedule = Schedule(arguments.start, arguments.steps)

        def update(ids: Tensor) -> Tensor:
            for parameter in self.optimizer.parameters:
                parameter.grad = None
            figures = self.step(ids)
            self.optimizer.step()
            return figures.detach()

        if not arguments.start:
            record.unlink(missing_ok=True)
        step, captured = arguments.start, Step(update, device)
        sums, count = torch.zeros(len(self.names), device=device), 0
        saved: int | None = None
        while step < arguments.steps:
            late = arguments.seconds is not None and time.monotonic() - began > arguments.seconds
            if late:
                break
            self.optimizer.set_rate(schedule.at(step))
            sums += captured(torch.from_numpy(rows.at(step)))
            step, count = step + 1, count + 1
            if step % arguments.evaluate_every == 0 or step == arguments.steps:
                figures = dict(zip(self.names, (sums / count).tolist(), strict=True))
                line = {
                    "step": step, "rate": schedule.at(step),
                    "seconds": time.monotonic() - began, **figures, **self.evaluate(),
                }  # fmt: skip
                sums, count = torch.zeros_like(sums), 0
                if not all(map(math.isfinite, figures.values())):
                    raise not_finite(step, self.names)
                with record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                self.save(saved := step)
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}, flush=True)
        if saved != step:
            self.save(step)
        print(f"saved after step {step} of {arguments.steps}")
