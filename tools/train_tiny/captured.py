"""A training step as one CUDA graph: its thousands of small kernels are launched by one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UP = 3


class Step:
    """``run`` maps ids [B, T + 1] to a vector of figures and updates the parameters; a CPU runs it as it is."""

    def __init__(self, run: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.run, self.device = run, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side: torch.cuda.Stream
        self.ids: Tensor
        self.figures: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Figures of the step; on a GPU the same tensor each time."""
        if self.device.type != "cuda":
            return self.run(rows.to(self.device))
        rows = rows.pin_memory()
        self.calls += 1
        if self.graph is None:
            self._first(rows)
        else:
            self.ids.copy_(rows, non_blocking=True)
            self.graph.replay()
        return self.figures

    def _first(self, rows: Tensor) -> None:
        """Ordinary steps on a stream of their own until everything is compiled and allocated, then the capture."""
        if self.calls == 1:
            self.ids = rows.to(self.device)
            self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.ids.copy_(rows, non_blocking=True)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.figures = self.run(self.ids)
        torch.cuda.current_stream().wait_stream(self.side)
        if self.calls >= _WARM_UP:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.figures = self.run(self.ids)
            # A capture runs nothing: the step of these rows is done, the next call replays.
            self.graph = graph
