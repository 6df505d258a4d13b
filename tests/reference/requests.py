"""What is scheduled: requests, the places that they hold, and frames of scheduled steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class Stage(Enum):
    """Where a sequence stands. GONE: its place was given up; rows that still name it are dead."""

    PARTIAL = auto()
    LOADING = auto()
    PROMPTED = auto()
    RUNNING = auto()
    DRAINING = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class Request:
    """One request, from ``add`` until its end was handed out."""

    id: int
    tokens: list[int]  # the prompt, then the committed output
    prompt_length: int
    limit: int  # of the length
    min_tokens: int
    end_ids: frozenset[int]
    checkpoints: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    paused: bool = False
    reason: int = 0  # 0 while it has not ended
    sequence: Sequence | None = None  # its place, while it has one

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(slots=True, eq=False)
class Sequence:
    """A place: the cache of a request. A request that is preempted and comes back gets a new one."""

    request: Request
    stage: Stage
    slot: int
    blocks: list[int]
    prefill_length: int  # tokens to prefill: the length when it got its place, its first branch's for a fork
    computed: int = 0  # prompt tokens scheduled
    transfer: bool = False  # its cache is read or written from outside
    joined: int = -1  # number in the order of joining running
    drafts: list[int] = field(default_factory=list)  # from the prefill step's commit, until the first decode step
    newest: tuple[int, ...] | None = None  # confidences of the latest committed output
    older: tuple[int, ...] | None = None  # and of the one before it
    passes: int = 0  # how often it was passed over

    @property
    def alive(self) -> bool:
        """Whether results of its rows still count."""
        return self.stage not in (Stage.DRAINING, Stage.GONE)

    def pass_over(self) -> None:
        """Nothing on the device is its own any more: what it would have verified is lost."""
        self.drafts = []
        self.newest = self.older = None
        self.passes += 1


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a scheduled step."""

    sequence: Sequence
    start: int  # position of the first query; drafts of an uncommitted step count as accepted
    q_len: int
    cap: int  # drafts that it may verify
    remap: int
    samples: bool
    passes: int  # of the sequence when it was scheduled

    @property
    def id(self) -> int:
        return self.sequence.request.id


@dataclass(frozen=True, slots=True)
class Frame:
    """A scheduled step whose results are not committed."""

    step_id: int
    decode: bool
    rows: tuple[Row, ...]
    provisional: bool = False
