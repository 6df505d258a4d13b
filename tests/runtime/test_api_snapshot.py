"""The public names, their kinds and defaults, as written down in api_snapshot.yaml."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import deepinfer_gen
from deepinfer_gen.runtime.outputs import CompletionOutput, Logprob, RequestOutput, RequestStateStats

SNAPSHOT = Path(__file__).with_name("api_snapshot.yaml")
CLASSES = (
    deepinfer_gen.LLM,
    deepinfer_gen.SamplingParams,
    RequestOutput,
    CompletionOutput,
    RequestStateStats,
    Logprob,
)


def described(function: Any) -> list[str]:
    """Parameters as ``name``, ``name = default``, with ``*`` before keyword-only ones."""
    result, keyword_only = [], False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            result.append("*")
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        result.append(f"{prefix}{name}{default}")
    return result


def public_api() -> dict[str, dict[str, Any]]:
    api: dict[str, dict[str, Any]] = {}
    for cls in CLASSES:
        members = {"__init__": described(cls)}
        for name in dir(cls):
            if name.startswith("_"):
                continue
            member = inspect.getattr_static(cls, name)
            if isinstance(member, property):
                members[name] = ["property"]
            elif inspect.isfunction(getattr(cls, name)) or inspect.ismethod(getattr(cls, name)):
                members[name] = described(getattr(cls, name))
        api[cls.__name__] = members
    return api


def test_the_api_is_as_written_down() -> None:
    written = YAML(typ="safe").load(SNAPSHOT)
    assert public_api() == written


def test_the_package_offers_the_names() -> None:
    assert set(deepinfer_gen.__all__) >= {"LLM", "SamplingParams", "RequestOutput", "CompletionOutput"}
