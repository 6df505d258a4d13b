"""Plans of specs that a test states as mappings."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_gen.codegen.derive import derive
from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.specs.load import load_spec
from deepinfer_gen.specs.resolve import resolve


def spec_plan(folder: Path, spec: Mapping[str, Any], **fields: Any) -> Plan:
    """The compiler's plan of ``spec`` with ``section__field=value`` changed; the file is written into ``folder``."""
    written = copy.deepcopy(dict(spec))
    for name, value in fields.items():
        section, field = name.split("__")
        written.setdefault(section, {})[field] = value
    path = folder / "spec.yaml"
    path.write_text(json.dumps(written, indent=1), encoding="utf-8")
    return derive(resolve(load_spec(path)))
