"""``explain SPEC KEY``: where a value comes from."""

from __future__ import annotations

import argparse

from deepinfer_gen.canonical import plain
from deepinfer_gen.codegen.commands.arguments import add_engine
from deepinfer_gen.codegen.commands.output import write_json, write_lines
from deepinfer_gen.codegen.explain import explain_json, explain_lines, list_keys, matching_keys
from deepinfer_gen.codegen.sources import open_plan
from deepinfer_gen.diagnostics import Diagnostic, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``explain``."""
    add_engine(parser)
    parser.add_argument(
        "key",
        metavar="KEY",
        help="Plan key such as kv.bytes_per_token; a prefix (state) or a glob (layers.*.ratio) lists keys",
    )
    parser.add_argument("--full", action="store_true", help="show long lists whole")
    parser.add_argument(
        "--depth", metavar="N", type=int, help="levels of the tree to print (default: down to its roots)"
    )
    parser.add_argument("--json", action="store_true", help="print the tree as data")


def run(args: argparse.Namespace) -> int:
    """Print the tree of one key, or the list of keys that a prefix or glob names."""
    plan = open_plan(args.spec)
    if args.key in plan:
        if args.json:
            write_json(explain_json(plan, args.key))
        else:
            write_lines(explain_lines(plan, args.key, full=args.full, depth=args.depth))
        return 0
    keys = matching_keys(plan, args.key)
    if not keys:
        raise InputError(_unknown(args.spec, args.key, list(plan)))
    if args.json:
        write_json({"keys": {k: {"value": plain(plan[k]), "unit": plan.values[k].unit} for k in keys}})
    else:
        write_lines(list_keys(plan, keys))
    return 0


def _unknown(spec: str, key: str, known: list[str]) -> Diagnostic:
    from difflib import get_close_matches

    last = {k.rpartition(".")[2]: k for k in known}
    close = [last[key]] if key in last else get_close_matches(key, known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else f"deepinfer-gen explain {spec} '*' lists all keys"
    return Diagnostic("DI261", f"the Plan of {spec} has no key '{key}'", help=hint)
