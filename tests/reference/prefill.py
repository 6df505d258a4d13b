"""Admission of requests and the prefill step (docs/scheduler.md, sections 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass

from reference.config import Config
from reference.requests import Request, Row, Sequence, Stage
from reference.state import State


def has_obstacle(state: State, request: Request) -> bool:
    """Whether the request cannot be admitted to a prefill step now."""
    config, usable = state.config, state.blocks.usable
    used = usable - len(state.blocks.free)
    return used * config.limit_denominator > usable * config.limit_numerator or state.no_room(request)


def wants_prefill(state: State) -> bool:
    """A partial sequence can go on, or the head of the queue can be admitted."""
    if any(not sequence.request.paused for sequence in state.partial):
        return True
    head = next((request for request in state.prefill_queue if not request.paused), None)
    return head is not None and not has_obstacle(state, head)


def admit_incoming(state: State) -> None:
    """Requests whose cache another engine computed, front to back, until one finds no room."""
    for request in [r for r in state.incoming if not r.paused]:
        if state.no_room(request):
            return
        state.incoming.remove(request)
        sequence = state.open_place(request, Stage.LOADING)
        sequence.transfer = True
        state.loading.append(sequence)
        state.loads.append(request.id)


@dataclass(slots=True)
class Budget:
    """What is left of a prefill step's three limits."""

    tokens: int
    prompts: int
    lengths: int

    @classmethod
    def full(cls, config: Config) -> Budget:
        return cls(config.max_num_batched_tokens, config.max_num_prompts, config.prefill_max_sum_seqlen_k)

    def spend(self, row: Row) -> None:
        self.tokens -= row.q_len
        self.prompts -= 1
        self.lengths -= row.start + row.q_len


def chunk_end(config: Config, request: Request, computed: int, budget: Budget, *, step_is_empty: bool) -> int:
    """Where the next chunk ends; ``computed`` if it is empty."""
    if budget.prompts == 0:
        return computed
    limit = min(request.length, computed + budget.tokens)
    end = request.length if limit == request.length else _cut(config, request, computed, limit, step_is_empty)
    return end if end <= budget.lengths else computed


def _cut(config: Config, request: Request, computed: int, limit: int, step_is_empty: bool) -> int:
    """The end of a chunk that is not the prompt's last one."""

    def legal(position: int) -> bool:
        in_span = any(start < position < end for start, end in request.spans)
        return not in_span and (position - computed) % config.alignment == 0

    cuts = [position for position in range(computed + 1, limit + 1) if legal(position)]
    checkpoints = [position for position in cuts if position in request.checkpoints]
    if checkpoints or cuts:
        return (checkpoints or cuts)[-1]
    if step_is_empty and request.spans:
        # `add` refuses the spans with which this could go beyond the budget.
        later = (p for p in range(limit + 1, request.length + 1) if legal(p) or p == request.length)
        return min(next(later), computed + config.max_num_batched_tokens)
    return computed


def schedule_prefill(state: State) -> list[Row]:
    """The rows of a prefill step; what they need is taken. An empty list leaves everything as it was."""
    config, budget, rows = state.config, Budget.full(state.config), list[Row]()

    def add_row(sequence: Sequence, end: int) -> bool:
        """Whether the step may go on: a cut ends it."""
        request = sequence.request
        last = end == request.length
        rows.append(Row(sequence, sequence.computed, end - sequence.computed, 0, -1, last, sequence.passes))
        budget.spend(rows[-1])
        sequence.computed = end
        if last:
            state.become_prompted(sequence)
        return last

    for sequence in [s for s in state.partial if not s.request.paused]:
        end = chunk_end(config, sequence.request, sequence.computed, budget, step_is_empty=not rows)
        if end == sequence.computed or not add_row(sequence, end):
            return rows
    for request in [r for r in state.prefill_queue if not r.paused]:
        end = 0 if has_obstacle(state, request) else chunk_end(config, request, 0, budget, step_is_empty=not rows)
        if end == 0:
            return rows
        state.prefill_queue.remove(request)
        sequence = state.open_place(request, Stage.PARTIAL)
        state.partial.append(sequence)
        state.zero_states.append(sequence.slot)
        if not add_row(sequence, end):
            return rows
    return rows
