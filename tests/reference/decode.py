"""The decode step: who is selected, what is taken for them, who is preempted (docs/scheduler.md, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from reference.requests import Row, Sequence
from reference.state import State
from reference.verification import Candidate, Verification


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The rows of a decode step, its graph, and whether the device splits again."""

    rows: list[Row]
    graph_index: int
    provisional: bool


def schedule_decode(state: State, verification: Verification, agreed: int | None) -> DecodePlan:
    """``agreed`` is the size of the group's graph with padded dispatch, else None."""
    state.join_running()
    state.running.sort(key=lambda s: s.request.output_length)
    in_flight = state.rows_in_flight()
    selected = _select(state, in_flight, agreed)
    for sequence in state.running:
        if sequence not in selected:
            sequence.pass_over()
    order = sorted(selected, key=lambda s: -s.request.length)  # stable: ties keep the order of selection
    last_row = {row.sequence: index for index, row in enumerate(state.last_decode)}
    candidates = [_candidate(state, s, in_flight, s in last_row) for s in order]
    lengths = verification.choose(candidates, agreed)
    rows = []
    for sequence, candidate, q_len in zip(order, candidates, lengths.q_len, strict=True):
        row = in_flight.get(sequence)
        start = sequence.request.length - 1 + (1 + row.cap if row else 0)
        remap = last_row.get(sequence, -1)
        rows.append(Row(sequence, start, q_len, candidate.cap, remap, True, sequence.passes))
    state.last_decode = tuple(rows)
    total_q = sum(row.q_len for row in rows)
    graph_index = state.config.graph_index(total_q if agreed is None else agreed)
    return DecodePlan(rows, graph_index, lengths.provisional)


def tokens_left(sequence: Sequence, in_flight: dict[Sequence, Row]) -> int:
    """Tokens that it may still produce, if every uncommitted row gives at least one."""
    return sequence.request.limit - sequence.request.length - (sequence in in_flight)


def _candidate(state: State, sequence: Sequence, in_flight: dict[Sequence, Row], in_last: bool) -> Candidate:
    """What verification may choose from for this row. The drafts of a prefill step serve the first decode step only."""
    nextn, left = state.config.nextn, tokens_left(sequence, in_flight)
    present = nextn if in_last else len(sequence.drafts)
    cap = max(0, min(nextn, left - 1, present))
    if sequence in in_flight:
        return Candidate(cap, sequence.newest, sequence.newest, True)
    return Candidate(cap, sequence.older, sequence.newest, False)


def _select(state: State, in_flight: dict[Sequence, Row], agreed: int | None) -> list[Sequence]:
    """Sequences that decode now, shortest output first; preemption takes from the end of running."""
    selected: list[Sequence] = []
    index = 0
    while index < len(state.running) and (agreed is None or len(selected) < agreed):
        sequence = state.running[index]
        wanted = not sequence.request.paused and tokens_left(sequence, in_flight) > 0
        if wanted and _make_room(state, sequence, in_flight):
            _take(state, sequence, in_flight)
            selected.append(sequence)
        index += 1
    return selected


def _write_block(state: State, sequence: Sequence) -> int | None:
    """Index of the block of its newest token; None where that block has yet to be taken."""
    index = (sequence.request.length - 1) // state.config.block_size
    return index if index < len(sequence.blocks) else None


def _shares(state: State, sequence: Sequence) -> bool:
    """Its slot or its write block is another's too."""
    index = _write_block(state, sequence)
    return state.slots.shared(sequence.slot) or (index is not None and state.blocks.shared(sequence.blocks[index]))


def _blocks_needed(state: State, sequence: Sequence, in_flight: dict[Sequence, Row]) -> int:
    """Free blocks that it takes to decode: a write block of its own, and growth."""
    index = _write_block(state, sequence)
    replace = index is not None and state.blocks.shared(sequence.blocks[index])
    return replace + max(0, _blocks_in_the_end(state, sequence, in_flight) - len(sequence.blocks))


def _blocks_in_the_end(state: State, sequence: Sequence, in_flight: dict[Sequence, Row]) -> int:
    """Blocks of its committed tokens, its uncommitted row's and this step's."""
    frames = 2 if sequence in in_flight else 1
    return state.config.blocks_for(sequence.request.length + frames * state.config.max_q)


def _make_room(state: State, sequence: Sequence, in_flight: dict[Sequence, Row]) -> bool:
    """Preempt from the end of running until its blocks are there; False if it cannot be selected."""
    if state.slots.shared(sequence.slot) and not state.slots.free:
        return False
    if sequence.transfer and _shares(state, sequence):
        return False
    while len(state.blocks.free) < _blocks_needed(state, sequence, in_flight):
        victim = state.running[-1]
        frees = any(state.blocks.would_free(block) for block in victim.blocks)
        if victim.transfer or (not frees and victim is not sequence):
            return False
        state.preempt(victim)
        if victim is sequence:
            return False
    return True


def _take(state: State, sequence: Sequence, in_flight: dict[Sequence, Row]) -> None:
    """A slot of its own, then a write block of its own, then growth."""
    config = state.config
    if state.slots.shared(sequence.slot):
        source, sequence.slot = sequence.slot, state.slots.copy_on_write(sequence.slot)
        state.clone_states.append((source, sequence.slot))
    index = _write_block(state, sequence)
    if index is not None and state.blocks.shared(sequence.blocks[index]):
        source = sequence.blocks[index]
        if (sequence.request.length - 1) % config.block_size > 0:
            sequence.blocks[index] = state.blocks.copy_on_write(source)
            state.clone_blocks.append((source, sequence.blocks[index]))
        else:  # nothing in it is its own
            sequence.blocks[index] = state.blocks.take()
            state.blocks.release(source)
    while len(sequence.blocks) < _blocks_in_the_end(state, sequence, in_flight):
        sequence.blocks.append(state.blocks.take())
