"""Engines of a given number of sequences for the scheduler benchmarks, and one decode step as the runtime runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.runtime.loader import load_engine

_SPEC = """\
engine:
  name: bench-{sequences}
  type: COMPLETION
model: deepseek-v4.1-flash
hardware: sm100
parallel:
  dp: 64
  ep: 64
limits:
  max_num_seqs: {sequences}
  max_model_len: 32768
kv:
  num_blocks: {blocks}
"""
PROMPT = 500
SETS = 16
WARMUP = 20
DECODE = 2


def generate(sequences: int, parent: Path) -> Path:
    """Write the folder of a decode engine with five drafts, variable-length verification and blocks for all."""
    spec = parent / f"bench-{sequences}.yaml"
    spec.write_text(_SPEC.format(sequences=sequences, blocks=max(300, 100 * sequences)))
    return write_folder(render(plan_spec(str(spec))), parent / f"bench-{sequences}").path


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Build the engine; a scheduler of it, with a cost curve, and its constants."""
    build_folder(folder)
    extension = load_engine(folder).extension
    scheduler, constants = extension.Scheduler(), extension.constants()
    scheduler.set_cost_curve(curve(constants))
    return scheduler, constants


def curve(constants: dict[str, Any]) -> np.ndarray:
    """A cost for each graph size, in ms: 8 for the weights and 10 µs a token."""
    return np.array([8 + 0.01 * size for size in constants["kGraphSizes"]])


@dataclass
class Timings:
    """Seconds of the parts of each step."""

    begin: list[float] = field(default_factory=list)
    arrays: list[float] = field(default_factory=list)
    flags: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)

    def totals(self) -> list[float]:
        """Seconds of each step."""
        return [sum(parts) for parts in zip(self.begin, self.arrays, self.flags, self.commit, strict=True)]


def decode(scheduler: Any, constants: dict[str, Any], steps: int, clock: Callable[[], float]) -> Timings:
    """Run decode steps of all sequences; results are committed one step late and differ from step to step."""
    rows, nextn, max_q = constants["kMaxNumSeqs"], constants["kNextn"], constants["kMaxQ"]
    rng = np.random.default_rng(0)
    confidences = [rng.integers(25000, 65000, (rows, nextn)).astype(np.uint16) for _ in range(SETS)]
    accepted = [rng.integers(1, max_q + 1, rows).astype(np.int32) for _ in range(SETS)]
    tokens = np.full((rows, max_q), 7, np.int32)
    flags = fill(scheduler, rows)
    timings = Timings()
    uncommitted: tuple[Any, ...] | None = None
    for k in range(steps + WARMUP):
        start = clock()
        action = scheduler.begin_step(flags)
        begun = clock()
        if action != DECODE:
            raise SystemExit(f"step {k} is no decode step: {action}")
        step = scheduler.step()
        _STEP_ARRAYS(step)
        arrays = clock()
        flags = scheduler.flags()
        published = clock()
        real = step.num_rows
        counts = np.minimum(accepted[k % SETS][:real], step.q_len[:real])
        current = (step.step_id, tokens[:real], counts, confidences[k % SETS][:real])
        del step
        commit = clock()
        if uncommitted is not None:
            _COMMITTED_ARRAYS(scheduler.commit(*uncommitted))
        committed = clock()
        uncommitted = current
        if k >= WARMUP:
            timings.begin.append(begun - start)
            timings.arrays.append(arrays - begun)
            timings.flags.append(published - arrays)
            timings.commit.append(committed - commit)
    return timings


def fill(scheduler: Any, rows: int) -> Any:
    """All sequences run; returns the record of the step that loaded them."""
    prompt, none = np.full(PROMPT + 1, 5, np.int32), np.empty(0, np.int32)
    for number in range(1, rows + 1):
        scheduler.add_prompted(number, prompt, PROMPT, 30000, 0, none)
    scheduler.begin_step(None)
    for number in range(1, rows + 1):
        scheduler.end_transfer(number)
    return scheduler.flags()


_STEP_ARRAYS = attrgetter(
    "ids", "q_len", "k_len", "prefill_len", "slot", "remap", "samples", "block_table", "history", "input_ids",
    "positions", "row_of_token", "caps", "provisional", "clone_blocks", "clone_states", "zero_states", "ignored",
    "preempted", "loads",
)  # fmt: skip
_COMMITTED_ARRAYS = attrgetter("ids", "emitted", "reasons")


def cpu_clock() -> float:
    """CPU seconds of this thread: slices that other processes take do not count."""
    return time.thread_time()
