"""``clean``: remove built engines and what interrupted builds left from the cache."""

from __future__ import annotations

import argparse
import sys

from deepinfer_gen.build_cache import BuildCache
from deepinfer_gen.codegen.commands.output import write_lines
from deepinfer_gen.codegen.text import columns, write_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``clean``."""
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, remove nothing")


def run(args: argparse.Namespace) -> int:
    """List every entry with its size, removed or to be removed."""
    cache = BuildCache()
    items = cache.items()
    if not args.dry_run:
        for item in items:
            cache.remove(item)
    rows = [[item.kind, item.name, write_bytes(item.size), str(item.path)] for item in items]
    write_lines(columns(rows, "<<><", indent="") if rows else [])
    word = "would remove" if args.dry_run else "removed"
    total = write_bytes(sum(item.size for item in items))
    sys.stderr.write(f"{word} {len(items)} entries, {total}, from {cache.root}\n")
    return 0
