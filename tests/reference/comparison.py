"""One rank twice: every call goes to both schedulers, and whatever they answer must be the same."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

SCALARS = ("step_id", "kind", "num_rows", "total_q", "graph", "provisional")
ARRAYS = (
    "ids", "q_len", "k_len", "prefill_len", "slot", "remap", "samples", "caps", "block_table", "history", "input_ids",
    "positions", "row_of_token", "clone_blocks", "clone_states", "zero_states", "ignored", "preempted", "loads",
)  # fmt: skip
RESULTS = {
    "commit": ("ids", "emitted", "reasons"),
    "outcomes": ("ids", "reasons", "stop_tokens"),
    "decision": ("point", "want", "go", "scheduled", "decode_counter"),
}


class Refused(Exception):  # noqa: N818 - not an error: both schedulers refuse the call, as they may
    """Both refuse the call."""


class Pair:
    """A scheduler and the reference. Borrowed arrays are copied at once, so that nothing is held."""

    def __init__(self, scheduler: Any, reference: Any, name: str = "") -> None:
        self.scheduler, self.reference, self.name = scheduler, reference, name
        self.log: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=30)

    def call(self, method: str, *arguments: Any) -> Any:
        """The common answer; ``Refused`` if both raise. AssertionError with the calls so far if they differ."""
        self.log.append((method, arguments))
        real, expected = (self._answer(s, method, arguments) for s in (self.scheduler, self.reference))
        if isinstance(real, Exception) != isinstance(expected, Exception):
            self.fail(f"{method}: {real!r}, reference: {expected!r}")
        if isinstance(expected, Exception):
            raise Refused(str(expected))
        self.same(method, real, expected)
        return expected

    def _answer(self, scheduler: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            answer = getattr(scheduler, method)(*arguments)
        except (ValueError, RuntimeError) as error:
            return error
        if method in RESULTS:
            return {field: _plain(getattr(answer, field)) for field in RESULTS[method]}
        return _plain(answer)

    def step(self) -> Any:
        """The step that both scheduled: the reference's, which owns its arrays."""
        real, expected = self.scheduler.step(), self.reference.step()
        for field in (*SCALARS, *ARRAYS):
            if field != "step_id" or expected.kind:
                self.same(f"step().{field}", _plain(getattr(real, field)), _plain(getattr(expected, field)))
        return expected

    def same(self, what: str, real: Any, expected: Any) -> None:
        if real != expected:
            self.fail(f"{what} is {real}, reference: {expected}")

    def fail(self, text: str) -> None:
        calls = [f"{method}{arguments}" for method, arguments in self.log]
        raise AssertionError("\n".join([f"rank {self.name}: {text}", "the last calls:", *calls]))


def _plain(value: Any) -> Any:
    """Arrays as lists, together with their shape."""
    return (value.shape, value.tolist()) if isinstance(value, np.ndarray) else value
