"""What commands look at: a spec, which is planned in memory, or a generated folder, which is read and verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.diagnostics import InputError


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
    if not Path(argument).is_dir():
        return plan_spec_unfit(argument)
    from deepinfer_gen.codegen.plan_file import parse_plan
    from deepinfer_gen.manifest import read_folder

    folder = read_folder(Path(argument))
    return parse_plan(folder.text("plan.json"), str(folder.path / "plan.json"), folder.manifest.spec_file), None


def open_layout(argument: str) -> tuple[Plan, Mapping[str, Any]]:
    """The Plan and ``layout.json`` of a spec (worked out in memory) or of a generated folder (as it stands there)."""
    plan = open_plan(argument)
    if Path(argument).is_dir():
        return plan, _stored_json(argument, "layout.json")
    from deepinfer_gen.codegen.views.layout import layout_content

    return plan, layout_content(plan)


def open_view(argument: str) -> EngineView:
    """The Plan and the JSON files of a spec or of a generated folder."""
    plan, layout = open_layout(argument)
    if Path(argument).is_dir():
        return EngineView(plan, layout, _stored_json(argument, "graphs.json"), _stored_json(argument, "kernels.json"))
    from deepinfer_gen.codegen.views.layout import graphs_content
    from deepinfer_gen.codegen.views.model import kernels_content

    return EngineView(plan, layout, graphs_content(plan), kernels_content(plan))


def _stored_json(folder: str, name: str) -> Mapping[str, Any]:
    from deepinfer_gen.manifest import read_folder

    content: Mapping[str, Any] = json.loads(read_folder(Path(folder)).text(name))
    return content
