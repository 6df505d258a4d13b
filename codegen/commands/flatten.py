"""``flatten SPEC``: the specialised scheduler as one source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deepinfer_gen.codegen.commands.arguments import add_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``flatten``."""
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Print the source."""
    from deepinfer_gen.codegen.flatten import flatten

    sys.stdout.write(flatten(_sources(args.spec)))
    return 0


def _sources(argument: str) -> dict[str, str]:
    """Every C++ file of an engine by the name under which it is included: of a spec, or of a folder as it stands."""
    from deepinfer_gen.codegen.render import render
    from deepinfer_gen.codegen.sources import open_plan
    from deepinfer_gen.engine_sources import installed_sources, sources_of
    from deepinfer_gen.manifest import read_folder

    if Path(argument).is_dir():
        folder = read_folder(Path(argument))
        contents = {**sources_of(folder), **folder.contents}
        return {name: content.decode() for name, content in contents.items()}
    headers = {name: content.decode() for name, content in installed_sources().items()}
    return {**headers, **render(open_plan(argument))}
