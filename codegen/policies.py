"""The policies that a scheduler is composed of: which header and class each spec value selects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """One choice: Plan key ``key`` with value ``value`` selects class ``name`` of ``header``; ``title`` names it."""

    key: str
    value: str
    header: str
    name: str
    title: str


POLICIES = (
    Policy("engine.type", "NORMAL", "engine/step_normal.hpp", "NormalStep", "normal step"),
    Policy("engine.type", "PROMPT", "engine/step_prompt.hpp", "PromptStep", "prompt step"),
    Policy("engine.type", "COMPLETION", "engine/step_completion.hpp", "CompletionStep", "completion step"),
    Policy("speculative.verify", "fixed", "engine/verify_fixed.hpp", "FixedVerification", "fixed verification"),
    Policy("speculative.verify", "varlen", "engine/verify_varlen.hpp", "VarlenVerification", "varlen verification"),
)


def select(key: str, value: object) -> Policy:
    """The policy that ``value`` of Plan key ``key`` selects."""
    for policy in POLICIES:
        if (policy.key, policy.value) == (key, value):
            return policy
    raise ValueError(f"no policy for {key}: {value!r}")


def by_header(header: str) -> Policy | None:
    """The policy that lives in ``header``; None for a header that no spec value selects."""
    return next((p for p in POLICIES if p.header == header), None)
