"""New branches of a sequence (docs/scheduler.md, section 7)."""

from __future__ import annotations

from reference.requests import Request, Sequence, Stage
from reference.state import State


def fork(state: State, parent: Request, children: list[int]) -> None:
    """Each child shares the parent's slot and the blocks of all its positions but the newest; it is prompted.

    ValueError, with nothing changed, if the parent cannot be forked now or places do not suffice.
    """
    source = parent.sequence
    if source is None or source.stage not in (Stage.PROMPTED, Stage.RUNNING):
        raise ValueError(f"fork: request {parent.id} does not decode")
    if source in state.rows_in_flight():
        raise ValueError(f"fork: request {parent.id} is in a step that is not committed")
    if not state.place_left(len(children)):
        raise ValueError(f"fork: no places for {len(children)} more")
    for child in children:
        request = Request(
            child,
            list(parent.tokens),
            parent.prompt_length,
            parent.limit,
            parent.min_tokens,
            parent.end_ids,
            parent.checkpoints,
            parent.spans,
        )
        blocks = source.blocks[: state.config.blocks_for(parent.length - 1)]
        for block in blocks:
            state.blocks.share(block)
        state.slots.share(source.slot)
        request.sequence = Sequence(request, Stage.PROMPTED, source.slot, list(blocks), source.prefill_length)
        state.requests[child] = request
        state.prompted.append(request.sequence)
