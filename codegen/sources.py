"""What commands look at: a spec, which is planned in memory, or a generated folder, which is read and verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.diagnostics import InputError

if TYPE_CHECKING:
    from deepinfer_gen.manifest import GeneratedFolder

_TABLES = ("layout", "graphs", "kernels")
"""The JSON files of an ``EngineView``, in the order of its fields."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine as its generated folder describes it: the Plan and the JSON files, by the names in ``formats.md``."""

    plan: Plan
    layout: Mapping[str, Any]
    graphs: Mapping[str, Any]
    kernels: Mapping[str, Any]


def plan_spec(spec: str) -> Plan:
    """Load, resolve and derive a spec file, or a shipped spec by its bare name."""
    plan, fault = plan_spec_unfit(spec)
    if fault:
        raise fault
    return plan


def plan_spec_unfit(spec: str, overrides: Mapping[str, str] | None = None) -> tuple[Plan, InputError | None]:
    """Like ``plan_spec``, with ``overrides`` (YAML text by key), and also where memory does not suffice.

    The second result is the error that ``plan_spec`` raises for the lack of memory, or None. All other faults are
    raised.
    """
    from deepinfer_gen.codegen.derive import derive_unfit
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    return derive_unfit(resolve(load_spec(spec, overrides)))


def open_plan(argument: str) -> Plan:
    """The Plan of a spec or of a generated folder."""
    plan, fault = open_plan_unfit(argument)
    if fault:
        raise fault
    return plan


def open_plan_unfit(argument: str) -> tuple[Plan, InputError | None]:
    """Like ``open_plan``, with the lack of memory beside the Plan; a generated folder's Plan has none."""
    folder = _folder(argument)
    return plan_spec_unfit(argument) if folder is None else (_stored_plan(folder), None)


def open_layout(argument: str) -> tuple[Plan, Mapping[str, Any]]:
    """The Plan and ``layout.json`` of a spec (worked out in memory) or of a generated folder (as it stands there)."""
    if folder := _folder(argument):
        return _stored_plan(folder), _stored_json(folder, "layout.json")
    from deepinfer_gen.codegen.views.layout import layout_content

    plan = plan_spec(argument)
    return plan, layout_content(plan)


def open_view(argument: str) -> EngineView:
    """The Plan and the JSON files of a spec or of a generated folder."""
    if folder := _folder(argument):
        return EngineView(_stored_plan(folder), *(_stored_json(folder, f"{name}.json") for name in _TABLES))
    from deepinfer_gen.codegen.views.layout import graphs_content, layout_content
    from deepinfer_gen.codegen.views.model import kernels_content

    plan = plan_spec(argument)
    return EngineView(plan, layout_content(plan), graphs_content(plan), kernels_content(plan))


def _folder(argument: str) -> GeneratedFolder | None:
    """The verified folder that ``argument`` names; None if it names a spec."""
    if not Path(argument).is_dir():
        return None
    from deepinfer_gen.manifest import read_folder

    return read_folder(Path(argument))


def _stored_plan(folder: GeneratedFolder) -> Plan:
    from deepinfer_gen.codegen.plan_file import parse_plan

    return parse_plan(folder.text("plan.json"), str(folder.path / "plan.json"), folder.regenerate)


def _stored_json(folder: GeneratedFolder, name: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(folder.text(name))
    return content
