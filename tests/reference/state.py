"""Everything that one rank knows, and the moves between queues and places."""

from __future__ import annotations

from reference.blocks import Pool
from reference.config import Config
from reference.records import PREEMPTED
from reference.requests import Frame, Request, Row, Sequence, Stage

Pairs = list[tuple[int, int]]


class State:
    """Queues, places, pools and frames of one rank."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.blocks, self.slots = Pool(config.num_blocks), Pool(config.num_slots)
        self.requests: dict[int, Request] = {}  # those whose end was not handed out
        self.prefill_queue: list[Request] = []
        self.incoming: list[Request] = []
        self.partial: list[Sequence] = []  # in order of admission
        self.loading: list[Sequence] = []
        self.prompted: list[Sequence] = []  # in the order in which they will join running
        self.running: list[Sequence] = []  # sorted by every decode step
        self.draining: dict[int, Sequence] = {}
        self.frames: list[Frame] = []
        self.last_decode: tuple[Row, ...] = ()  # the rows of the last decode step
        self.ended: list[tuple[int, int, int]] = []  # id, reason and stop token, to be handed out
        self.joined = 0
        # What the next step reports or has executed:
        self.ignored: list[int] = []
        self.preempted: list[int] = []
        self.loads: list[int] = []
        self.clone_blocks: Pairs = []
        self.clone_states: Pairs = []
        self.zero_states: list[int] = []
        # What the caller said:
        self.said_pending = False
        self.error = ""

    def begin(self) -> None:
        """A new step: the copies of the last one were launched."""
        self.blocks.unpin_all()
        self.slots.unpin_all()
        self.loads, self.preempted, self.zero_states = [], [], []
        self.clone_blocks, self.clone_states = [], []

    # Places

    def places(self) -> int:
        """Places that are not draining."""
        return len(self.partial) + len(self.loading) + len(self.prompted) + len(self.running)

    def place_left(self, count: int = 1) -> bool:
        """Draining sequences keep theirs, of as many again."""
        places = self.places() + count
        return places <= self.config.max_num_seqs and places + len(self.draining) <= self.config.places

    def open_place(self, request: Request, stage: Stage) -> Sequence:
        """Slot, then blocks for all its tokens. The caller has checked that there are enough."""
        slot = self.slots.take()
        blocks = [self.blocks.take() for _ in range(self.config.blocks_for(request.length))]
        sequence = Sequence(request, stage, slot, blocks, request.length)
        request.sequence = sequence
        return sequence

    def close_place(self, sequence: Sequence) -> None:
        """Blocks in table order, then the slot."""
        for block in sequence.blocks:
            self.blocks.release(block)
        self.slots.release(sequence.slot)
        sequence.stage = Stage.GONE
        sequence.request.sequence = None

    def leave_lists(self, sequence: Sequence) -> None:
        """Out of the list of its stage."""
        lists = {
            Stage.PARTIAL: self.partial,
            Stage.LOADING: self.loading,
            Stage.PROMPTED: self.prompted,
            Stage.RUNNING: self.running,
        }
        lists[sequence.stage].remove(sequence)

    def become_prompted(self, sequence: Sequence) -> None:
        self.leave_lists(sequence)
        sequence.stage = Stage.PROMPTED
        self.prompted.append(sequence)

    def join_running(self) -> None:
        """Prompted sequences join in order."""
        for sequence in self.prompted:
            sequence.stage, sequence.joined = Stage.RUNNING, self.joined
            self.joined += 1
            self.running.append(sequence)
        self.prompted = []

    # Ends

    def end(self, request: Request, reason: int, stop_token: int = -1) -> None:
        """The request ends. Its place goes with it, or drains while a transfer uses it."""
        request.reason = reason
        self.ended.append((request.id, reason, stop_token))
        sequence = request.sequence
        if sequence is None:
            (self.incoming if request in self.incoming else self.prefill_queue).remove(request)
            self.ignored.append(request.id)
            return
        self.leave_lists(sequence)
        if sequence.transfer:
            sequence.stage = Stage.DRAINING
            self.draining[request.id] = sequence
        else:
            self.close_place(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """The place is given up. The request ends, or waits at the front of the prefill queue to be computed again."""
        request = sequence.request
        self.preempted.append(request.id)
        if self.config.stop_preempted:
            self.end(request, PREEMPTED)
        else:
            self.leave_lists(sequence)
            self.close_place(sequence)
            self.prefill_queue.insert(0, request)

    # Frames

    def rows_in_flight(self) -> dict[Sequence, Row]:
        """The live sequences of the uncommitted decode frame, each with its row."""
        return {r.sequence: r for f in self.frames if f.decode for r in f.rows if r.sequence.alive}

    # Obstacles

    def no_room(self, request: Request) -> bool:
        """No place, no free slot, or too few free blocks for all its tokens."""
        needed = self.config.blocks_for(request.length)
        return not self.place_left() or not self.slots.free or len(self.blocks.free) < needed

    def first_incoming(self) -> Request | None:
        return next((request for request in self.incoming if not request.paused), None)

    # The record

    def decodable(self) -> bool:
        unpaused = any(not s.request.paused for s in (*self.prompted, *self.running))
        return unpaused or any(frame.decode and frame.rows for frame in self.frames)

    def unfinished(self) -> bool:
        return any(not request.reason for request in self.requests.values())

    def pending(self) -> bool:
        first = self.first_incoming()
        return (
            self.said_pending
            or any(request.paused and not request.reason for request in self.requests.values())
            or bool(self.loading or self.draining)
            or any(not frame.decode and frame.rows for frame in self.frames)
            or (first is not None and not self.no_room(first))
        )
