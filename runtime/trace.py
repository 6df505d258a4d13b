"""``run --trace``: one JSON object per step, showing what of the generated files the step used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from deepinfer_gen.runtime.model.step_counts import StepCounts
from deepinfer_gen.runtime.plan_types import KernelConfig
from deepinfer_gen.runtime.scheduler_core import Action, StepView


class TraceWriter:
    """Writes JSON lines: step, kind, rows, total_q, graph, graph_rows, rows by layer and by region, region offsets and
    kernels.
    """

    def __init__(self, stream: TextIO, layout: Mapping[str, Any], kernels: Mapping[str, KernelConfig]) -> None:
        self._stream = stream
        self._fixed = {
            "regions": {
                "state": {r["name"]: r["offset"] for r in layout["state"]["regions"]},
                "block": {
                    r["name"]: {"offset": r["offset"], "main": r["main"]["offset"], "index": r["index"]["offset"]}
                    for r in layout["block"]["regions"]
                },
            },
            "kernels": {
                name: {"implementation": kernel.implementation, "tile": dict(kernel.tile)}
                for name, kernel in sorted(kernels.items())
            },
        }

    def write(self, step: StepView, work: StepCounts) -> None:
        """Append the event of one executed step."""
        event = {
            "step": int(step.step_id),
            "kind": Action(step.kind).name.lower(),
            "rows": int(step.num_rows),
            "total_q": int(step.total_q),
            "graph": int(step.graph),
            "graph_rows": len(step.ids) if step.graph else 0,
            "layer_rows": {str(layer): rows for layer, rows in work.computed.items()},
            "rows_written": {f"{kind}.{layer}": rows for (kind, layer), rows in work.written.items()},
            **self._fixed,
        }
        self._stream.write(json.dumps(event) + "\n")
        self._stream.flush()
