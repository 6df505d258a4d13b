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
    from deepinfer_gen.codegen.derive import derive
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    return derive(resolve(load_spec(spec)))


def plan_spec_unfit(spec: str, overrides: Mapping[str, str] | None = None) -> tuple[Plan, InputError | None]:
    """Like ``plan_spec``, with ``overrides`` (YAML text by key), and also where memory does not suffice.

    The second result is the error that ``plan_spec`` would raise for the lack of memory, or None. All other faults are
    raised.
    """
    from deepinfer_gen.codegen.derive import derive_unfit
    from deepinfer_gen.specs.load import load_spec
    from deepinfer_gen.specs.resolve import resolve

    return derive_unfit(resolve(load_spec(spec, overrides)))


def open_plan(argument: str) -> Plan:
    """The Plan of a spec or of a generated folder."""
    if not Path(argument).is_dir():
        return plan_spec(argument)
    from deepinfer_gen.codegen.plan_file import parse_plan
    from deepinfer_gen.manifest import read_folder

    folder = read_folder(Path(argument))
    return parse_plan(folder.text("plan.json"), str(folder.path / "plan.json"), folder.manifest.spec_file)


def open_view(argument: str) -> EngineView:
    """The Plan and the JSON files of a spec (worked out in memory) or of a generated folder (as they stand there)."""
    plan = open_plan(argument)
    if Path(argument).is_dir():
        from deepinfer_gen.manifest import read_folder

        folder = read_folder(Path(argument))
        return EngineView(plan, *(json.loads(folder.text(f"{n}.json")) for n in ("layout", "graphs", "kernels")))
    from deepinfer_gen.codegen.views.layout import graphs_content, layout_content
    from deepinfer_gen.codegen.views.model import kernels_content

    return EngineView(plan, layout_content(plan), graphs_content(plan), kernels_content(plan))
