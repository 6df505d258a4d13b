"""``flatten SPEC``: the specialised scheduler as one source."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``flatten``."""
    parser.add_argument("spec", metavar="SPEC", help="spec file, name of a shipped spec, or generated folder")


def run(args: argparse.Namespace) -> int:
    """Print the source; a policy that is not built yet is named where its code will stand."""
    from deepinfer_gen.codegen.flatten import flatten, with_engine_headers
    from deepinfer_gen.codegen.policies import POLICIES

    later = {policy.header: f"// The {policy.title} is not built yet.\n" for policy in POLICIES}
    sys.stdout.write(flatten({**later, **with_engine_headers(_generated(args.spec))}))
    return 0


def _generated(argument: str) -> Mapping[str, str]:
    """The C++ files of a spec (rendered in memory) or of a generated folder, by name."""
    if Path(argument).is_dir():
        from deepinfer_gen.manifest import read_folder

        folder = read_folder(Path(argument))
        return {name: folder.text(name) for name in folder.contents if name.endswith((".hpp", ".cpp"))}
    from deepinfer_gen.codegen.render import render
    from deepinfer_gen.codegen.sources import plan_spec

    return render(plan_spec(argument))
