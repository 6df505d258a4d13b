"""The compiler's plan of an engine for a checkpoint folder, without a spec file of its own."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deepinfer_gen.codegen.plan import Plan
from deepinfer_gen.codegen.sources import plan_spec


def plan_engine(checkpoint: Path, sections: Mapping[str, Mapping[str, object]]) -> Plan:
    """Plan a CPU engine for the folder's config.json; ``sections`` are those of the spec behind engine and hardware.

    Raises ``InputError`` for every fault of the configuration.
    """
    spec = {"engine": {"name": "checkpoint"}, "model": "config.json", "hardware": "cpu", **sections}
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(checkpoint / "config.json", work)
        path = Path(work, "spec.yaml")
        path.write_text(json.dumps(spec), encoding="utf-8")
        return plan_spec(str(path))
