"""How much work a step was: rows through each layer, and rows stored in each region of the caches."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepCounts:
    """``computed``: rows by layer. ``written``: rows by kind of region (``swa``, ``ca_state``, ``main``, ``index``) and
    the layer that owns it. Padding rows count; a row that a longer chunk would overwrite in its ring is not stored.
    """

    computed: dict[int, int] = field(default_factory=dict)
    written: dict[tuple[str, int], int] = field(default_factory=dict)

    def compute(self, layer: int, rows: int) -> None:
        """``rows`` rows went through ``layer``."""
        self.computed[layer] = self.computed.get(layer, 0) + rows

    def write(self, kind: str, layer: int, rows: int) -> None:
        """``rows`` rows were stored in a region of ``layer``."""
        self.written[kind, layer] = self.written.get((kind, layer), 0) + rows
