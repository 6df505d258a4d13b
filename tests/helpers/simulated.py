"""Engines and workloads for tests of the simulator."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepinfer_gen.codegen.build import build_folder
from deepinfer_gen.codegen.render import render
from deepinfer_gen.codegen.sources import plan_spec
from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.runtime.simulate.fault_plan import OF_A_REQUEST, PHASES, FaultEvent, read_fault_plan
from deepinfer_gen.runtime.simulate.workload import WorkloadRequest, read_workload

SCARCE = """\
engine:
  name: {name}
  type: {type}
model: tiny-v41
hardware: cpu
parallel:
  dp: 2
limits:
  max_num_seqs: 8
  max_model_len: 200
kv:
  block_size: 32
  num_blocks: 12
numerics:
  policy: float32_unquantized
speculative:
  nextn: 3
"""
"""Few blocks, so that sequences are preempted."""
OVERLAPPED = """\
  verify: varlen
schedule:
  zos: on
"""
"""Behind ``SCARCE``: verification lengths that a curve decides, and results one step late."""
RECOMPUTE = "  stop_preempted_request: false\n"


def build_spec(spec: str, parent: Path) -> Path:
    """Generate and build a spec, given as text, by its path or by a shipped name; gives the folder."""
    parent.mkdir(parents=True, exist_ok=True)
    path = spec
    if "\n" in spec:
        (parent / "spec.yaml").write_text(spec)
        path = str(parent / "spec.yaml")
    plan = plan_spec(path)
    folder = write_folder(render(plan), parent / str(plan["engine.name"])).path
    build_folder(folder)
    return folder


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def request(name: str, prompt_len: int, max_tokens: int, **others: Any) -> dict[str, Any]:
    return {"id": name, "prompt_len": prompt_len, "max_tokens": max_tokens, **others}


def parsed(
    folder: Path, lines: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]] = (), ranks: int = 1
) -> tuple[list[WorkloadRequest], list[FaultEvent]]:
    """A workload and a fault plan, through their files in ``folder``."""
    workload, _ = read_workload(write_lines(folder / "workload.jsonl", lines), ranks)
    plan = read_fault_plan(write_lines(folder / "faults.jsonl", events), workload, ranks) if events else []
    return workload, plan


def random_lines(rng: random.Random, ranks: int, *, forks: bool) -> list[dict[str, Any]]:
    horizon = rng.choice([1, 30, 150])
    lines: list[dict[str, Any]] = []
    for i in range(rng.choice([3, 10, 40])):
        if forks and lines and rng.random() < 0.25:
            line = {**rng.choice(lines), "abort_step": None}
            line |= {"fork_of": line["id"], "id": f"r{i}", "arrival_step": rng.randrange(horizon)}
        else:
            line = request(f"r{i}", rng.randint(1, 180), rng.randint(2, 80), rank=rng.randrange(ranks))
            line |= {"arrival_step": rng.randrange(horizon), "accept_rate": rng.choice([0, 0.5, 0.8, 1])}
        if rng.random() < 0.15:
            line["abort_step"] = line["arrival_step"] + rng.randrange(60)
        lines.append(line)
    return lines


def random_events(rng: random.Random, lines: Sequence[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """Events at all edges of steps; what is paused or held is let go again."""
    undone = {"pause": "resume", "begin_transfer": "end_transfer", "hold_load": "end_transfer", "pending": "settled"}
    kinds = [*OF_A_REQUEST, "late", "early", "pending"]
    events: list[dict[str, Any]] = []
    for _ in range(rng.choice([0, 10, 40])):
        event: dict[str, Any] = {"step": rng.randrange(200), "phase": rng.choice(PHASES), "event": rng.choice(kinds)}
        if event["event"] in OF_A_REQUEST:
            line = rng.choice(lines)
            event["id"] = line["id"]
            if event["event"] == "end_token":
                event["output"] = rng.randint(1, 80)
                if "fork_of" in line:
                    continue
        else:
            event["rank"] = rng.randrange(ranks)
        events.append(event)
        if event["event"] in undone:
            place = {key: event[key] for key in ("id", "rank") if key in event}
            events.append({"step": event["step"] + rng.randint(1, 40), "event": undone[event["event"]], **place})
    # A load that was held before its request came is let go here.
    return events + [{"step": 300, "event": "end_transfer", "id": line["id"]} for line in lines]
