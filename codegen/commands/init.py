"""``init [FILE]``: a commented spec to start from."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from deepinfer_gen.codegen.commands.output import write_lines
from deepinfer_gen.codegen.starter_spec import starter_spec
from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.specs.presets import hardware_tables, presets

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LARGE = "sm100"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``init``."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, default=Path("engine.yaml"), help="default: engine.yaml"
    )
    parser.add_argument(
        "--model", choices=sorted(presets()), default="tiny-v41-code", help="model preset (default: tiny-v41-code)"
    )
    parser.add_argument(
        "--hardware",
        choices=sorted(hardware_tables()),
        help=f"target (default: cpu for a model whose checkpoint ships with it, else {_LARGE})",
    )
    parser.add_argument("--name", help="engine name (default: the file's name)")


def run(args: argparse.Namespace) -> int:
    """Write the file; one that exists is never overwritten."""
    name = args.name or args.file.stem
    if not _NAME.fullmatch(name):
        text = f"'{name}' is no engine name: lower-case letters, digits and '-', at most 63, not '-' first"
        raise InputError(Diagnostic("DI263", text, help="choose one with --name"))
    ships = any(presets()[args.model].glob("*.safetensors"))
    spec = starter_spec(str(args.file), name, args.model, args.hardware or ("cpu" if ships else _LARGE))
    try:
        with args.file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(spec)
    except FileExistsError:
        remedy = "choose another file name, or remove it first"
        raise InputError(
            Diagnostic("DI264", "exists already and is left as it is", str(args.file), help=remedy)
        ) from None
    sys.stderr.write(f"next: deepinfer-gen plan {args.file}\n")
    write_lines([str(args.file)])
    return 0
