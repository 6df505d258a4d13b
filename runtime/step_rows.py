"""The counts of one ragged step that its work depends on: queries, and what each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer_gen.runtime.plan_types import LayerPlan, ModelPlan

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a step, each int64 [R]; the queries of a row are the positions ``keys - queries`` to ``keys - 1``.

    ``kept``: its last queries, the only ones that run in the layers behind a truncation cut; ``floor``: the first
    position whose window row those layers hold. ``drafting`` (0 or 1): a block of drafts follows the row.
    ``logits_rows`` counts the queries of the whole step whose logits are computed.
    """

    queries: Counts
    keys: Counts
    kept: Counts
    floor: Counts
    drafting: Counts
    logits_rows: int

    @classmethod
    def of(
        cls,
        queries: Sequence[int] | Counts,
        keys: Sequence[int] | Counts,
        *,
        logits_rows: int,
        kept: Sequence[int] | Counts | None = None,
        floor: Sequence[int] | Counts | None = None,
        drafting: Sequence[int] | Counts | None = None,
    ) -> StepRows:
        """Without ``kept`` and ``floor`` nothing is truncated; without ``drafting`` nothing is drafted.

        Raises ``ValueError`` where a row has fewer keys than queries, or keeps more queries than it has.
        """
        q, k = np.asarray(queries, np.int64), np.asarray(keys, np.int64)
        none = np.zeros_like(q)
        step = cls(
            queries=q,
            keys=k,
            kept=q if kept is None else np.asarray(kept, np.int64),
            floor=none if floor is None else np.asarray(floor, np.int64),
            drafting=none if drafting is None else np.asarray(drafting, np.int64),
            logits_rows=logits_rows,
        )
        if (q > k).any() or (step.kept > q).any() or (step.kept < 0).any():
            raise ValueError(f"rows of {q} queries, {step.kept} of them kept, over {k} keys")
        return step

    @property
    def tokens(self) -> int:
        """Queries of all rows."""
        return int(self.queries.sum())


class Cut:
    """Which of a step's rows a layer runs and what its window holds, by where the model truncates a prefill.

    Features of rows that are dropped at the cut are dropped with them, so the draft layers take the kept rows, wherever
    their target layers lie.
    """

    def __init__(self, model: ModelPlan) -> None:
        self._first = model.yoco.first_consumer_layer if model.yoco else len(model.layers)
        self._truncates = model.yoco is not None

    def queries(self, layer: LayerPlan, rows: StepRows) -> Counts:
        """Queries that run in a layer of the backbone."""
        return rows.kept if layer.index >= self._first else rows.queries

    def held(self, layer: LayerPlan, rows: StepRows) -> Counts:
        """Positions whose window rows a layer of the backbone holds after the step."""
        return rows.keys - rows.floor if layer.index >= self._first else rows.keys

    def targets(self, rows: StepRows) -> Counts:
        """Queries whose features the draft layers take."""
        return rows.kept if self._truncates else rows.queries

    def held_by_drafts(self, rows: StepRows) -> Counts:
        """Positions whose window rows the draft layers hold after the step."""
        return rows.keys - rows.floor if self._truncates else rows.keys


def seen_by_queries(queries: Counts, keys: Counts, *, ratio: int = 1, most: int | None = None) -> int:
    """Sum over the queries at positions p of ``min((p + 1) // ratio, most)``: the entries that they see.

    With ratio 1 these are window rows, ``most`` then is the window.
    """
    total: np.int64 = (_seen_up_to(keys, ratio, most) - _seen_up_to(keys - queries, ratio, most)).sum()
    return int(total)


def _seen_up_to(keys: Counts, ratio: int, most: int | None) -> Counts:
    """Sum of ``min(n // ratio, most)`` over n = 1 .. keys."""
    # Up to here no minimum is taken: whole groups of `ratio` equal terms, then an open group.
    rising = keys if most is None else np.minimum(keys, most * ratio - 1)
    groups, rest = np.divmod(rising, ratio)
    constant = 0 if most is None else most * (keys - rising)
    total: Counts = ratio * groups * (groups - 1) // 2 + groups * (rest + 1) + constant
    return total
