"""``Action`` and ``Reason`` as plain names: every step compares many, and looking up an enum's attribute is slow."""

from __future__ import annotations

from deepinfer_gen.runtime.scheduler_core import Action, Reason

VOTE, PREFILL, DECODE, IDLE, DONE, FAIL = Action
STOP, LENGTH, ABORT, PREEMPTED, ERROR = Reason
