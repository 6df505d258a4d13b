"""``deepinfer-gen SPEC``: from a spec to a generated folder and a built engine."""

from __future__ import annotations

import argparse
import sys

from deepinfer_gen.codegen.commands.arguments import add_parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the default command."""
    parser.add_argument("spec", metavar="SPEC", help="spec file, or name of a shipped spec")
    add_parent(parser)
    parser.add_argument("--no-build", action="store_true", help="write the folder only")
    parser.add_argument(
        "--standalone", action="store_true", help="copy the C++ headers in, to build without this package"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that were edited by hand")


def run(args: argparse.Namespace) -> int:
    """Write ``PARENT/<name>/`` and build it; the paths of both are the results."""
    # Imported here because the general --help shows this command's options and must load nothing else.
    from deepinfer_gen.codegen.commands.build import build
    from deepinfer_gen.codegen.commands.output import write_lines
    from deepinfer_gen.codegen.sources import plan_spec

    plan = plan_spec(args.spec)
    from deepinfer_gen.codegen.render import render
    from deepinfer_gen.codegen.write import write_folder
    from deepinfer_gen.runtime.mechanisms import remedies

    written = write_folder(render(plan, standalone=args.standalone), args.output / plan.name, force=args.force)
    count = len(written.changed)
    sys.stderr.write(f"wrote {count} file{'s' if count > 1 else ''}\n" if count else "the folder is up to date\n")
    write_lines([str(written.path)])
    if not args.no_build:
        missing = remedies(plan.as_dict()["values"])
        if missing:
            sys.stderr.write(f"note: run refuses this engine for now; to run it, write {', '.join(missing)}\n")
        build(written.path)
    return 0
